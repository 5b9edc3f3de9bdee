"""`python -m helpers.corpus --run NAME --json FILE`: write a run's documents as one JSON list of strings.

That is the train.json of other projects; `--split val` writes those for validation.
"""

import argparse
import sys
from pathlib import Path

from helpers.corpus.shards import write_json_list
from helpers.manifest import RoomError, open_room
from helpers.wording import let_console_replace


def export_json(arguments: list[str] | None = None) -> int:
    """Read the command line, write the file, and return the exit code: 0 done, 2 not possible."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.corpus", description="Write the documents of a run as one JSON list of strings."
    )
    parser.add_argument("--run", required=True, metavar="NAME", help="name of the run: the folder under runs/")
    parser.add_argument("--json", required=True, type=Path, metavar="FILE", help="the file to write, say train.json")
    parser.add_argument("--split", choices=("train", "val"), default="train", help="which documents (default: train)")
    asked = parser.parse_args(arguments)
    let_console_replace()
    try:
        open_room(asked.run, "corpus")
        documents = write_json_list(asked.run, asked.split, asked.json.absolute())
    except (RoomError, ValueError, OSError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 2
    print(f"{documents:,} documents in {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(export_json())
