"""`python3 data/try/serve.py`: the course's trained model in your browser, with nothing installed but Python.

This folder holds the default run's model, and helpers/serve/page what computes with it. Both are served to this machine
only, or with --write FOLDER written as a folder for a host of plain files.
"""

import argparse
import contextlib
import os
import shutil
import sys
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
# a name is looked for in these, one after the other: the page that is filled in comes before the one with gaps
FOLDERS = (HERE, HERE / "chat", HERE.parent.parent / "helpers" / "serve" / "page")
LOADED = {".html", ".css", ".js", ".svg", ".json", ".safetensors"}
NOT_LOADED = {"texts.json", "tokenizer_config.json"}


def demo_files() -> dict[str, Path]:
    """Return {name: file} of all that the page loads."""
    files = [file for folder in FOLDERS for file in sorted(folder.iterdir())]
    found: dict[str, Path] = {}
    for file in files:
        if file.suffix in LOADED and file.name not in NOT_LOADED:
            found.setdefault(file.name, file)
    return found


class Handler(SimpleHTTPRequestHandler):
    """Serves these files, and no other."""

    protocol_version = "HTTP/1.1"
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript", ".svg": "image/svg+xml"}

    def __init__(self, *arguments, files: dict[str, Path], **more) -> None:
        self.files = files
        super().__init__(*arguments, **more)

    def translate_path(self, path: str) -> str:
        """Return the file of an address, or one that does not exist."""
        return str(self.files.get(path.partition("?")[0].strip("/") or "index.html", HERE / "nothing"))

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing of each request."""


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until Ctrl-C, or write it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000, help="default 8000; 0 takes any free port")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the page as a folder instead")
    options, files = parser.parse_args(arguments), demo_files()
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            shutil.copyfile(file, options.write / name)
        print(f"{options.write} is ready: any host of plain files can serve it")
        return 0
    try:
        server = ThreadingHTTPServer(("127.0.0.1", options.port), partial(Handler, files=files))
    except (OSError, OverflowError) as error:
        print(f"cannot listen on port {options.port} ({error}): choose another --port", file=sys.stderr)
        return 1
    address = f"http://127.0.0.1:{server.server_address[1]}"
    print(f"open {address} in a browser; Ctrl-C ends it", flush=True)
    with server, contextlib.suppress(KeyboardInterrupt):
        if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            webbrowser.open(address)
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
