/* Charts in SVG: lines, bands, bars. Drawn anew when their width changes; read with pointer or arrow keys. */

const MARGIN = { top: 10, right: 12, bottom: 40, left: 56 };

/* Draw a chart in a host element, or replace the one there.

   spec: label (what a picture's alternative text says), xLabel, yLabel,
         series: [{ name, x, y, style: 1.. (class of colour and dash), kind: "line" | "bars" | "dots" }],
         bands: [{ name, x, low, high, style }], marks: [{ x, text }], xRange, yRange, xName. */
function drawChart(host, spec) {
  if (!host.drawAgain) {
    host.classList.add("chart");
    host.append(element("div", { class: "plot" }), element("output", { class: "readout" }), element("ul", { class: "legend" }));
    // A readout that takes another line makes the host taller: drawing anew then would lose the place and the focus.
    new ResizeObserver(() => host.firstChild.clientWidth !== host.drawnWidth && host.drawAgain()).observe(host);
  }
  host.drawAgain = () => host.clientWidth && draw(host, spec);
  host.drawAgain();
}

function draw(host, spec) {
  const [plot, readout, legend] = host.children;
  const width = (host.drawnWidth = plot.clientWidth), height = Math.round(Math.min(360, Math.max(220, width * 0.6)));
  const shown = spec.series.map((one) => within(one, spec.xRange));
  const bands = (spec.bands || []).map((one) => within(one, spec.xRange));
  const xs = spec.xRange || extent(shown.flatMap((one) => [one.x[0], one.x[one.x.length - 1]]));
  const ys = spec.yRange || padded(extent([...shown.map((one) => one.y), ...bands.flatMap((one) => [one.low, one.high])]
    .flatMap((values) => extent(values))));
  const place = {
    x: (value) => MARGIN.left + ((value - xs[0]) / (xs[1] - xs[0] || 1)) * (width - MARGIN.left - MARGIN.right),
    y: (value) => height - MARGIN.bottom - ((value - ys[0]) / (ys[1] - ys[0] || 1)) * (height - MARGIN.top - MARGIN.bottom),
  };
  const svg = element("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": spec.label, tabindex: 0 });
  svg.append(...axes(spec, xs, ys, place, width, height));
  for (const band of bands) svg.append(bandPath(band, place));
  for (const mark of spec.marks || []) svg.append(...markLine(mark, place, width, height));
  for (const one of shown) svg.append(seriesPath(one, place, Math.max(ys[0], Math.min(0, ys[1]))));
  const cross = svg.appendChild(element("svg:line", { class: "cross", y1: MARGIN.top, y2: height - MARGIN.bottom, x1: -9, x2: -9 }));
  plot.replaceChildren(svg);
  legend.replaceChildren(...legendEntries(spec));
  readWithPointerAndKeys(svg, cross, readout, spec, shown, place);
}

function within(one, range) {
  if (!range) return one;
  const kept = Array.from(one.x, (value, n) => (value >= range[0] && value <= range[1] ? n : -1)).filter((n) => n >= 0);
  const cut = (values) => values && kept.map((n) => values[n]);
  return { ...one, x: cut(one.x), y: cut(one.y), low: cut(one.low), high: cut(one.high) };
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

function padded([low, high]) {
  const pad = (high - low || Math.abs(high) || 1) * 0.05;
  return [low - pad, high + pad];
}

/* About `count` round numbers between two. */
function ticks([low, high], count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, n) => (first + n) * step);
}

function axes(spec, xs, ys, place, width, height) {
  const parts = [];
  const text = (x, y, content, attributes = {}) => parts.push(element("svg:text", { x, y, ...attributes }, content));
  for (const value of ticks(ys, 5)) {
    parts.push(element("svg:line", { class: "gridline", x1: MARGIN.left, x2: width - MARGIN.right, y1: place.y(value), y2: place.y(value) }));
    text(MARGIN.left - 6, place.y(value) + 4, brief(+value.toPrecision(12)), { "text-anchor": "end" });
  }
  const whole = spec.series.every(({ x }) => Array.prototype.every.call(x, Number.isInteger));
  for (const value of ticks(xs, Math.max(2, Math.floor(width / 90))).filter((value) => !whole || Number.isInteger(value))) {
    text(place.x(value), height - MARGIN.bottom + 16, brief(+value.toPrecision(12)), { "text-anchor": "middle" });
  }
  parts.push(element("svg:line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: height - MARGIN.bottom, y2: height - MARGIN.bottom }));
  text((MARGIN.left + width - MARGIN.right) / 2, height - 6, spec.xLabel, { "text-anchor": "middle", class: "axis-label" });
  const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
  text(0, 0, spec.yLabel, { "text-anchor": "middle", class: "axis-label", transform: `translate(12 ${middle}) rotate(-90)` });
  return parts;
}

function bandPath(band, place) {
  const upper = Array.from(band.x, (x, n) => `${place.x(x).toFixed(1)},${place.y(band.high[n]).toFixed(1)}`);
  const lower = Array.from(band.x, (x, n) => `${place.x(x).toFixed(1)},${place.y(band.low[n]).toFixed(1)}`).reverse();
  return element("svg:polygon", { class: `band s${band.style}`, points: [...upper, ...lower].join(" ") });
}

function markLine(mark, place, width, height) {
  const x = place.x(mark.x), late = x > width * 0.6;
  return [
    element("svg:line", { class: "mark", x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom }),
    element("svg:text", { class: "mark-text", x: x + (late ? -5 : 5), y: MARGIN.top + 10, "text-anchor": late ? "end" : "start" }, mark.text),
  ];
}

function seriesPath(one, place, base) {
  const points = Array.from(one.x, (x, n) => [place.x(x).toFixed(1), place.y(one.y[n]).toFixed(1)]);
  if (one.kind === "dots") {
    return element("svg:g", { class: `dots s${one.style}` }, ...points.map(([x, y]) => dot(one.style, x, y)));
  }
  if (one.kind === "bars") {
    const bars = points.map(([x, y]) => `M${x},${place.y(base).toFixed(1)}V${y}`).join("");
    const step = one.x.length > 1 ? place.x(one.x[1]) - place.x(one.x[0]) : 8;
    return element("svg:path", { class: `bars s${one.style}`, d: bars, "stroke-width": Math.max(1, step * 0.9).toFixed(2) });
  }
  return element("svg:polyline", { class: `line s${one.style}`, points: points.join(" ") });
}

/* A circle, square or triangle, so that colour is not all that tells series apart. */
function dot(style, x, y) {
  if (style === 2) return element("svg:rect", { x: x - 3.5, y: y - 3.5, width: 7, height: 7 });
  if (style === 3) return element("svg:polygon", { points: `${x},${y - 4.5} ${+x + 4.5},${+y + 3.5} ${x - 4.5},${+y + 3.5}` });
  return element("svg:circle", { cx: x, cy: y, r: 3.8 });
}

function legendEntries(spec) {
  const entries = [...spec.series, ...(spec.bands || [])].filter((one) => one.name);
  if (entries.length < 2) return [];
  return entries.map((one) => {
    const shape = one.low ? element("svg:rect", { class: `band s${one.style}`, width: 24, height: 10, y: 1 })
      : one.kind === "dots" ? element("svg:g", { class: `dots s${one.style}` }, dot(one.style, 12, 6))
        : element("svg:polyline", { class: `line s${one.style}`, points: "0,6 24,6" });
    return element("li", {}, element("svg:svg", { viewBox: "0 0 24 12", width: 24, height: 12, "aria-hidden": "true" }, shape), one.name);
  });
}

function readWithPointerAndKeys(svg, cross, readout, spec, shown, place) {
  const axis = shown.length ? Array.from(shown[0].x) : [];
  let at = axis.length ? nearest(axis, 0) : -1;
  const show = () => {
    const x = axis[at];
    cross.setAttribute("x1", place.x(x));
    cross.setAttribute("x2", place.x(x));
    const values = shown.filter((one, n) => one.x.length && (one.name || n === 0)).map((one) => `${one.name || spec.yLabel} ${brief(one.y[nearest(one.x, x)])}`);
    readout.textContent = `${spec.xName || spec.xLabel} ${brief(+x.toPrecision(12))}: ${values.join(" · ")}`;
  };
  if (at < 0) return;
  svg.addEventListener("pointermove", (event) => {
    const ratio = (event.clientX - svg.getBoundingClientRect().left - MARGIN.left) / (svg.clientWidth - MARGIN.left - MARGIN.right);
    const [low, high] = spec.xRange || [axis[0], axis[axis.length - 1]];
    at = nearest(axis, low + ratio * (high - low));
    show();
  });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (!step) return;
    at = Math.min(axis.length - 1, Math.max(0, at + step));
    show();
    event.preventDefault();
  });
}

/* The place of the value in increasing numbers that is nearest to x. */
function nearest(values, x) {
  let low = 0, high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= x) low = middle; else high = middle;
  }
  return Math.abs(values[low] - x) <= Math.abs(values[high] - x) ? low : high;
}
