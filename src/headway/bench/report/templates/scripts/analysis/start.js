/* Read the data, draw, and follow the choice of a head. */

async function start() {
  const measures = readJson("measures"), arrays = await unpack(readJson("arrays"));
  const explorer = new Explorer(measures), panel = new HeadPanel(measures, arrays);
  explorer.onChange((layer, head) => panel.show(layer, head));
  if (measures.table) drawTable(measures, arrays);
  drawKinds(measures);
  if (measures.texts) {
    drawRanks(measures);
    explorer.onChange((layer) => drawRankParts(measures, layer));
  }
  if (measures.curves) explorer.onChange(drawCurves(measures, arrays));
  explorer.select(0, 0);
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  tell(error);
  throw error;
});
