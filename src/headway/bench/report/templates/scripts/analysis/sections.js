/* The sections below the heads: the table of positions, kinds of heads, ranks, bias curves. */

function drawTable({ table, model }, arrays) {
  const label = `Heat map of inner products of position vectors, Toeplitz R² ${written(table.r2)}`;
  const side = arrays.shape("gram")[1];
  new HeatMap(document.getElementById("gram"), { rows: "position", columns: "position", value: "inner product" })
    .show({ label, length: model.positions, layers: [{ edges: cellEdges(model.positions, side), values: arrays.get("gram") }], table: AMOUNT });
  const { starts, size, r2 } = table.windows;
  drawChart(document.getElementById("windows"), {
    label: `Toeplitz R² of windows of ${size} positions: ${r2[0].map((value) => written(value, 2)).join(", ")}`,
    xLabel: "first position of the window", xName: "window from", yLabel: "R²", yRange: [0, 1],
    series: [{ x: starts, y: r2[0], style: 1 }, { x: starts, y: r2[0], style: 1, kind: "dots" }],
  });
  const marks = table.seam.start === null ? [] : [{ x: table.seam.start, text: `change at ${table.seam.start}` }];
  const places = (values) => Array.from(values, (_, n) => n);
  const line = (id, name, yLabel) => {
    const y = arrays.get(id);
    drawChart(document.getElementById(id), { label: name, xLabel: "position", yLabel, marks, series: [{ x: places(y), y, style: 1 }] });
  };
  line("norms", "Length of the vector of each position", "length");
  line("neighbours", "Cosine between the vectors of neighbouring positions", "cosine");
  const offsets = arrays.get("gramOffsets"), mean = arrays.get("gramMean"), std = arrays.get("gramStd");
  drawChart(document.getElementById("gram-profile"), {
    label: "Mean inner product of position vectors by offset", xLabel: "offset j − i", xName: "offset", yLabel: "inner product",
    series: [{ name: "mean", x: offsets, y: mean, style: 1 }], bands: [around(offsets, mean, std)],
  });
  const counts = arrays.get("counts"), total = counts.reduce((sum, count) => sum + count, 0);
  const middles = Array.from(counts, (_, n) => -1 + (2 * n + 1) / counts.length);
  drawChart(document.getElementById("cosines"), {
    label: "Distribution of the cosine between all pairs of positions", xLabel: "cosine", yLabel: "share of pairs",
    xRange: [-1, 1], series: [{ x: middles, y: counts.map((count) => count / total), style: 1, kind: "bars" }],
  });
}

/* A line of means over heads with a band from least to greatest, one point a layer. */
function byLayer(name, values, style) {
  const x = values.map((_, layer) => layer);
  const mean = values.map((row) => row.reduce((sum, value) => sum + value, 0) / row.length);
  return [{ name, x, y: mean, style }, { name: "", x, low: values.map((row) => Math.min(...row)), high: values.map((row) => Math.max(...row)), style }];
}

function drawKinds({ heads, texts }) {
  const parts = [byLayer("positions alone", heads.patterns.first, 1)];
  if (texts) parts.push(byLayer("on texts", texts.patterns.first, 2));
  drawChart(document.getElementById("first"), {
    label: "Share of attention to the first token by layer", xLabel: "layer", yLabel: "share",
    series: parts.map(([line]) => line), bands: parts.map(([, band]) => band),
  });
}

function drawRanks({ texts }) {
  const { whole } = texts.ranks.average;
  const parts = [["numerical", 1], ["relative", 2], ["effective", 3]].map(([name, style]) => byLayer(name, whole[name], style));
  const width = texts.ranks.head_dim;
  drawChart(document.getElementById("rank-layers"), {
    label: `Rank of whole scores by layer, with heads ${width} wide`, xLabel: "layer", yLabel: "rank",
    yRange: [0, 1.06 * Math.max(width, ...whole.numerical.flat())],
    series: [{ name: `width of a head, ${width}`, x: parts[0][0].x, y: parts[0][0].x.map(() => width), style: 6 }, ...parts.map(([line]) => line)],
    bands: parts.map(([, band]) => band),
  });
}

/* The parts of the scores of one layer; of the last one that has parts, where deeper ones have none. */
function drawRankParts({ texts }, layer) {
  const { average } = texts.ranks, { words, positions } = average;
  const at = words ? Math.min(layer, words.effective.length - 1) : layer;
  document.getElementById("rank-layer").textContent = at;
  const x = average.whole.effective[at].map((_, head) => head);
  const dots = [["whole", average.whole, 1], ["words", words, 2], ["positions", positions, 3]].filter(([, part]) => part);
  drawChart(document.getElementById("rank-heads"), {
    label: `Effective rank of the scores of each head of layer ${at}`, xLabel: "head", yLabel: "effective rank",
    series: dots.map(([name, part, style]) => ({ name, x, y: part.effective[at], style, kind: "dots" })),
  });
}

function drawCurves({ model, curves, heads }, arrays) {
  const offsets = arrays.get("offsets"), terms = arrays.under("curveTerm ");
  let reach, at = [0, 0];
  const again = () => {
    const [layer, head] = at, first = layer * model.heads;
    document.getElementById("curve-layer").textContent = layer;
    document.getElementById("curve-r2").textContent = written(curves.r2[layer][head]);
    const line = (other) => ({ x: offsets, y: arrays.get("curve", first + other), style: "0" });
    const others = Array.from({ length: model.heads }, (_, n) => n).filter((n) => n !== head).map(line);
    const chosen = line(head), spread = arrays.get("curveSpread", first + head);
    const parts = terms.map((name, n) => ({ name: name.split(" ")[1], x: offsets, y: arrays.get(name, first + head), style: 2 + (n % 4) }));
    drawChart(document.getElementById("curve"), {
      label: `Bias by offset of the heads of layer ${layer}, head ${head} strong`, xLabel: "offset j − i", xName: "offset", yLabel: "bias",
      xRange: [Math.max(-reach, offsets[0]), Math.min(reach, offsets[offsets.length - 1])],
      series: [{ ...chosen, name: `head ${head}`, style: 1 }, ...parts, ...others],
      bands: [around(offsets, chosen.y, spread)],
    });
  };
  reachButtons(document.getElementById("curve-reach"), heads.length, (chosen) => { reach = chosen; again(); });
  return (layer, head) => { at = [layer, head]; again(); };
}
