"""`python -m helpers.corpus --run NAME --json FILE`: write a run's documents as one JSON list of strings.

That is the train.json of other projects; `--split val` writes those for validation.
"""

import argparse
import json
import sys
from pathlib import Path

from helpers.corpus.shards import read_texts
from helpers.files import atomic_write
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
    documents = 0
    try:
        open_room(asked.run, "corpus")
        with atomic_write(asked.json.absolute()) as file:
            for documents, text in enumerate(read_texts(asked.run, asked.split), 1):
                file.write(((",\n" if documents > 1 else "[\n") + json.dumps(text, ensure_ascii=False)).encode())
            file.write(b"\n]\n")
    except (RoomError, ValueError, OSError) as error:
        print(f"nothing was written: {error}", file=sys.stderr)
        return 2
    print(f"{documents:,} documents in {asked.json}")
    return 0


if __name__ == "__main__":
    sys.exit(export_json())
