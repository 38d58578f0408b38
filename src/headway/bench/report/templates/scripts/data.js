/* The data that stand in the page. */

function readJson(id) {
  return JSON.parse(document.querySelector(`script[type="application/json"]#${id}`).textContent);
}

/* Arrays packed by headway.bench.report.packing: get(name, row) gives the numbers of one row of the first axis. */
async function unpack({ index, blob }) {
  const packed = Uint8Array.from(atob(blob), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  return {
    has: (name) => name in index,
    under: (start) => Object.keys(index).filter((name) => name.startsWith(start)),
    shape: (name) => index[name].shape,
    get(name, row = 0) {
      const { shape, bits, at, low, step } = index[name];
      const size = shape.slice(1).reduce((product, length) => product * length, 1);
      const numbers = bits === 8 ? new Uint8Array(bytes, at + row * size, size)
        : new Uint16Array(bytes, at + 2 * row * size, size);
      const values = new Float64Array(size);
      const mask = 2 ** bits - 1;
      let sum = 0;
      for (let n = 0; n < size; n++) {
        sum = (sum + numbers[n]) & mask;
        values[n] = low[row] + step[row] * sum;
      }
      return values;
    },
  };
}

/* Numbers as the page writes them: a true minus sign, a dash where there is none. */
function written(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits).replace("-", "−");
}

function brief(value) {
  if (value === 0) return "0";
  const text = Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(1) : String(+value.toPrecision(3));
  return text.replaceAll("-", "−");
}

/* An element with attributes and children; text is text, never markup. */
function element(name, attributes = {}, ...children) {
  const made = name.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4))
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function tell(error) {
  const note = document.getElementById("failure");
  note.textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or later.`;
  note.hidden = false;
}
