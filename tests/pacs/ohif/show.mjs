// Opens a study in OHIF, loads its segmentation, takes a picture, and tells where on the picture the image lies.
//
//   node show.mjs PLAYWRIGHT CHROMIUM ADDRESS PICTURE
//
// The last line of standard output is JSON: the segments' labels, and the picture's pixels at which the centres of the
// image's first and last pixel are drawn.
import { createRequire } from "node:module";
import path from "node:path";

const [playwright, executablePath, address, picture] = process.argv.slice(2);
const { chromium } = createRequire(import.meta.url)(path.resolve(playwright));
const PATIENCE = 240_000;

// No graphics card: WebGL is computed. Root, as in a container, has no sandbox.
const browser = await chromium.launch({
  executablePath,
  args: ["--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"],
});
const page = await browser.newPage({ viewport: { width: 1100, height: 720 } });
page.setDefaultTimeout(PATIENCE);
page.on("pageerror", (error) => console.error(`page: ${error}`.slice(0, 400)));
await page.goto(address);
await page.getByText("SEG", { exact: true }).first().dblclick();
await page.getByRole("button", { name: "Yes" }).click();
await page.getByRole("button", { name: "Yes" }).waitFor({ state: "detached" });
await page.waitForFunction(() => {
  const { segmentationService, viewportGridService } = window.services;
  const shown = segmentationService.getSegmentationRepresentations(viewportGridService.getActiveViewportId());
  return shown.some((representation) => Object.keys(representation.segments).length > 0);
});
// The last redraw is not announced.
await page.waitForTimeout(3000);
const seen = await page.evaluate(() => {
  const { segmentationService, viewportGridService, cornerstoneViewportService } = window.services;
  const viewport = cornerstoneViewportService.getCornerstoneViewport(viewportGridService.getActiveViewportId());
  const { dimensions, imageData } = viewport.getImageData();
  const { left, top } = viewport.canvas.getBoundingClientRect();
  const drawn = (index) => {
    const [x, y] = viewport.worldToCanvas(imageData.indexToWorld(index));
    return [left + x, top + y];
  };
  return {
    segments: segmentationService
      .getSegmentations()
      .flatMap((segmentation) => Object.values(segmentation.segments).map((segment) => segment.label)),
    size: [dimensions[1], dimensions[0]],
    first: drawn([0, 0, 0]),
    last: drawn([dimensions[0] - 1, dimensions[1] - 1, 0]),
  };
});
await page.screenshot({ path: picture });
await browser.close();
console.log(JSON.stringify(seen));
