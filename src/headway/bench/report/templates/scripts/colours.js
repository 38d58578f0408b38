/* Colours that are evenly spaced to the eye and told apart without red and green: viridis (Smith and van der Walt) for
   amounts, ColorBrewer's blue to red for signs, Okabe and Ito's for kinds. */

const AMOUNT = mixed(["440154", "472d7b", "3b528b", "2c728e", "21918c", "28ae80", "5ec962", "addc30", "fde725"]);
const SIGN = mixed(["053061", "2166ac", "4393c3", "92c5de", "d1e5f0", "f7f7f7", "fddbc7", "f4a582", "d6604d", "b2182b",
  "67001f"]);

/* 256 colours through the given ones: [red, green, blue] each. */
function mixed(anchors) {
  const fixed = anchors.map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, n) => {
    const place = (n / 255) * (fixed.length - 1);
    const low = Math.min(Math.floor(place), fixed.length - 2);
    return fixed[low].map((part, c) => Math.round(part + (place - low) * (fixed[low + 1][c] - part)));
  });
}

function colourAt(table, share) {
  return table[Math.round(255 * Math.min(1, Math.max(0, share)))];
}

function css(colour) {
  return `rgb(${colour.join(" ")})`;
}

/* Black or white, whichever is easier to read on a colour (WCAG 2's contrast). */
function inkOn(colour) {
  const linear = colour.map((part) => (part / 255 <= 0.04045 ? part / 3294.6 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 ? "#fff" : "#000";
}
