/* Everything about the chosen head. */

class HeadPanel {
  constructor(measures, arrays) {
    Object.assign(this, { measures, arrays });
    this.length = measures.heads.length;
    this.offsets = arrays.get("offsets");
    this.scores = new HeatMap(document.getElementById("scores"));
    this.attention = new HeatMap(document.getElementById("attention"), { value: "attention" });
    if (measures.segments) this.segmentAttention = new HeatMap(document.getElementById("segment-attention"), { value: "attention" });
    document.getElementById("exact").textContent = arrays.shape("corner")[1];
    document.getElementById("part").addEventListener("change", () => this.drawScores());
    reachButtons(document.getElementById("reach"), this.length, (reach) => {
      this.reach = reach;
      if (this.layer !== undefined) this.drawProfile();
    });
  }

  show(layer, head) {
    Object.assign(this, { layer, head, row: layer * this.measures.model.heads + head });
    document.getElementById("head-title").textContent = `Layer ${layer}, head ${head}: ${this.measures.heads.kinds[layer][head]}`;
    this.drawNumbers();
    this.drawScores();
    this.drawProfile();
    this.drawAttention();
    this.drawWindows();
    if (this.measures.segments) this.drawSegments();
  }

  drawNumbers() {
    const { heads, texts } = this.measures, { layer, head } = this;
    const at = (values) => written(values[layer][head]);
    const kernels = Object.entries(heads.fits);
    fillTable(document.getElementById("fits"), ["TISA fit, kernels", ...kernels.map(([count]) => count)], [
      ["profile", "R² of the profile", ...kernels.map(([, fit]) => at(fit.r2_profile))],
      ["matrix", "R² of F_P", ...kernels.map(([, fit]) => at(fit.r2_matrix))],
    ]);
    const shares = [["previous", "attention to the previous token"], ["next", "to the next token"], ["first", "to the first token"],
      ["local", "within five tokens"], ["entropy", "entropy, share of the greatest"]];
    fillTable(document.getElementById("numbers"), ["", "positions alone", ...(texts ? ["on texts"] : [])], [
      ["r2", "Toeplitz R² of F_P", at(heads.r2)],
      ["r2_without_first", "… without the first position", at(heads.r2_without_first)],
      ...(heads.r2_carried ? [["r2_carried", "… of positions carried to this layer", at(heads.r2_carried)]] : []),
      ...shares.map(([id, text]) => [id, text, at(heads.patterns[id]), ...(texts ? [at(texts.patterns[id])] : [])]),
      ["kind", "kind", heads.kinds[layer][head], ...(texts ? [texts.kinds[layer][head]] : [])],
      ...(texts ? [["rank", "effective rank of the scores", "", written(texts.ranks.average.whole.effective[layer][head], 1)]] : []),
    ]);
  }

  drawScores() {
    const part = document.getElementById("part").value;
    const profile = this.fullProfile();
    const layers = ["picture", "corner"].map((name) => {
      const side = this.arrays.shape(name)[1];
      const edges = name === "corner" ? Array.from({ length: side + 1 }, (_, n) => n) : cellEdges(this.length, side);
      const values = this.arrays.get(name, this.row);
      return { edges, values: part === "scores" ? values : this.toeplitzPart(profile, edges, values, part) };
    });
    const label = `Heat map of ${part === "scores" ? "position scores F_P" : part === "toeplitz" ? "the Toeplitz part of F_P" : "what the Toeplitz part of F_P leaves"}, `
      + `layer ${this.layer}, head ${this.head}, Toeplitz R² ${written(this.measures.heads.r2[this.layer][this.head])}`;
    const rest = part === "rest" ? Math.max(...trimmed(layers[0].values).map(Math.abs)) : 0;
    this.scores.show({ label, length: this.length, layers, table: part === "rest" ? SIGN : AMOUNT, range: rest ? [-rest, rest] : undefined });
  }

  /* The profile at every offset from -(L - 1) to L - 1, between those that are in the page by straight lines; a causal
     model's profile ends at 0, and beyond it stays what it was there. */
  fullProfile() {
    const mean = this.arrays.get("mean", this.row), { offsets, length } = this;
    let at = 0;
    return Float64Array.from({ length: 2 * length - 1 }, (_, n) => {
      const offset = n - length + 1;
      while (at < offsets.length - 2 && offsets[at + 1] <= offset) at++;
      const share = Math.min(1, (offset - offsets[at]) / (offsets[at + 1] - offsets[at]));
      return mean[at] + share * (mean[at + 1] - mean[at]);
    });
  }

  /* Means of the profile over the pairs that each cell covers; or the values less these. */
  toeplitzPart(profile, edges, values, part) {
    const sums = new Float64Array(profile.length + 1), cells = edges.length - 1, found = new Float64Array(values.length);
    profile.forEach((value, n) => { sums[n + 1] = sums[n] + value; });
    for (let y = 0; y < cells; y++) {
      for (let x = 0; x < cells; x++) {
        let sum = 0;
        for (let i = edges[y]; i < edges[y + 1]; i++) sum += sums[edges[x + 1] - i + this.length - 1] - sums[edges[x] - i + this.length - 1];
        const mean = sum / ((edges[y + 1] - edges[y]) * (edges[x + 1] - edges[x]));
        const used = !this.measures.model.causal || x <= y;  // a causal model never uses what lies above the diagonal
        found[y * cells + x] = part === "toeplitz" ? mean : used ? values[y * cells + x] - mean : 0;
      }
    }
    return found;
  }

  drawProfile() {
    const { offsets, layer, head } = this, mean = this.arrays.get("mean", this.row), std = this.arrays.get("std", this.row);
    const fits = Object.entries(this.measures.heads.fits).map(([kernels, fit], n) => ({
      name: `S = ${kernels} (R² ${written(fit.r2_profile[layer][head])})`, x: offsets, y: tisaCurve(fit, layer, head, offsets), style: 2 + (n % 4),
    }));
    drawChart(document.getElementById("profile"), {
      label: `Profile of layer ${layer}, head ${head}: mean position score by offset, with fits of ${fits.map((fit) => fit.name).join(", ")}`,
      xLabel: "offset j − i", xName: "offset", yLabel: "score", xRange: this.range(),
      series: [{ name: "mean", x: offsets, y: mean, style: 1 }, ...fits],
      bands: [around(offsets, mean, std)],
    });
  }

  range() {
    return [Math.max(-this.reach, this.offsets[0]), Math.min(this.reach, this.offsets[this.offsets.length - 1])];
  }

  drawAttention() {
    const side = this.arrays.shape("attention")[1], { layer, head } = this;
    const edges = Array.from({ length: side + 1 }, (_, n) => n);
    const label = `Heat map of attention from positions alone, first ${side} positions, layer ${layer}, head ${head}`;
    const values = this.arrays.get("attention", this.row);
    this.attention.show({ label, length: side, layers: [{ edges, values }], table: AMOUNT, range: [0, trimmed(values)[1]] });
    const series = [{ name: "positions alone", x: this.arrays.get("patternOffsets"), y: this.arrays.get("pattern", this.row), style: 1 }];
    if (this.measures.texts) series.push({ name: "on texts", x: this.arrays.get("textPatternOffsets"), y: this.arrays.get("textPattern", this.row), style: 2 });
    drawChart(document.getElementById("pattern"), {
      label: `Share of attention by offset, layer ${layer}, head ${head}`, xLabel: "offset j − i", xName: "offset", yLabel: "share", series,
      xRange: [series[0].x[0], this.measures.model.causal ? 0 : -series[0].x[0]],
    });
  }

  drawWindows() {
    const { window: size, window_starts: starts, window_r2: r2 } = this.measures.heads, { layer, head } = this;
    drawChart(document.getElementById("head-windows"), {
      label: `Toeplitz R² of F_P over windows of ${size} positions, layer ${layer}, head ${head}`, xLabel: "first position of the window",
      xName: "window from", yLabel: "R²", yRange: [0, 1], series: [{ x: starts, y: r2[layer][head], style: 1 }, { x: starts, y: r2[layer][head], style: 1, kind: "dots" }],
    });
  }

  drawSegments() {
    const { layer, head } = this, scores = this.measures.segments.scores[layer][head];
    const most = Math.max(...scores.flat().map(Math.abs)) || 1;
    const cell = (value) => {
      const colour = colourAt(SIGN, 0.5 + value / most / 2);
      return element("td", { style: `background: ${css(colour)}; color: ${inkOn(colour)}` }, written(value));
    };
    const name = (n) => String.fromCharCode(65 + n);
    document.querySelector("#segment-scores tbody").replaceChildren(
      element("tr", {}, element("td"), ...scores.map((_, n) => element("th", { scope: "col" }, `key in ${name(n)}`))),
      ...scores.map((row, n) => element("tr", {}, element("th", { scope: "row" }, `query in ${name(n)}`), ...row.map(cell))),
    );
    const side = this.arrays.shape("segmentAttention")[1], edges = Array.from({ length: side + 1 }, (_, n) => n);
    const values = this.arrays.get("segmentAttention", this.row);
    this.segmentAttention.show({
      label: `Heat map of attention from positions and two segments, layer ${layer}, head ${head}`, length: side,
      layers: [{ edges, values }], table: AMOUNT, range: [0, trimmed(values)[1]],
    });
  }
}

/* A band of one standard deviation to either side of a mean. */
function around(x, mean, std) {
  return { name: "± one deviation", x, low: mean.map((value, n) => value - std[n]), high: mean.map((value, n) => value + std[n]), style: 1 };
}

/* constant + sum of amplitude exp(-sharpness (offset - center)²). */
function tisaCurve({ amplitude, sharpness, center, constant }, layer, head, offsets) {
  const kernels = amplitude[layer][head].map((height, n) => [height, sharpness[layer][head][n], center[layer][head][n]]);
  return Float64Array.from(offsets, (offset) => kernels.reduce(
    (sum, [height, sharp, middle]) => sum + height * Math.exp(-sharp * (offset - middle) ** 2), constant[layer][head]));
}

/* Buttons that choose how far to either side a chart reaches. */
function reachButtons(host, length, act) {
  const reaches = [length - 1, ...[64, 16].filter((reach) => reach < length - 1)];
  const buttons = reaches.map((reach, n) => element("button", { type: "button", "aria-pressed": "false" }, n ? `± ${reach}` : "all offsets"));
  const press = (n) => {
    buttons.forEach((button, m) => button.setAttribute("aria-pressed", m === n));
    act(reaches[n]);
  };
  buttons.forEach((button, n) => button.addEventListener("click", () => press(n)));
  host.append(...buttons);
  press(Math.min(1, reaches.length - 1));
}

/* A table: names of columns, then rows of an id, a name and values. */
function fillTable(table, columns, rows) {
  const body = rows.map(([id, name, ...values]) => element("tr", { "data-measure": id }, element("th", { scope: "row" }, name),
    ...Array.from({ length: columns.length - 1 }, (_, n) => element("td", {}, values[n] ?? ""))));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", { scope: "col" }, name)))), element("tbody", {}, ...body));
}
