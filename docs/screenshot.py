"""Creates docs/images/page.png, a screenshot of the page of the server.

keras-transformer serve saved_models/pronounce
python docs/screenshot.py
"""

import io
import pathlib
import sys

from PIL import Image
from playwright.sync_api import sync_playwright

PATH = pathlib.Path(__file__).parent / "images" / "page.png"
ADDRESS = "http://127.0.0.1:8501"
COMPILATION_MS = 600_000


def main(address: str = ADDRESS, path: pathlib.Path = PATH) -> None:
    """Writes what the page shows for a word, with one phoneme chosen."""
    with sync_playwright() as running:
        browser = running.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.goto(f"{address}/#text=transformer")
        for selector in ("#matrix:visible", "#state:not(:visible)"):
            page.wait_for_selector(selector, state="attached", timeout=COMPILATION_MS)
        page.click("#send")
        page.wait_for_selector("#matrix:visible")
        page.click("#target button:nth-child(7)")
        image = Image.open(io.BytesIO(page.screenshot(full_page=True)))
        browser.close()
    colors = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    colors.save(path, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
