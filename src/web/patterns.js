/* Fills for canvases: a colour for the class, a pattern for the phase, so that neither colour-blind
 * eyes nor a grey print lose what is what. */
import {colour, isDark} from "./base.js";

export const CLASSES = ["voice", "chat", "completion", "document", "utility", "background"];
const SIZE = 6;

let cache = new Map();
export const forgetPatterns = () => { cache = new Map(); };

function tile(base, kind) {
  const c = new OffscreenCanvas(SIZE, SIZE);
  const g = c.getContext("2d");
  g.fillStyle = base;
  if (kind === "decode") {
    g.fillRect(0, 0, SIZE, SIZE);
    return c;
  }
  g.globalAlpha = 0.32;
  g.fillRect(0, 0, SIZE, SIZE);
  g.globalAlpha = 1;
  if (kind === "prefill") {
    g.strokeStyle = base;
    g.lineWidth = 1.8;
    g.beginPath();
    for (let i = -SIZE; i <= SIZE * 2; i += SIZE) {
      g.moveTo(i, SIZE + 1);
      g.lineTo(i + SIZE + 2, -1);
    }
    g.stroke();
  } else {
    g.fillRect(0, 0, 3, 3);
    g.fillRect(3, 3, 3, 3);
  }
  return c;
}

export const classColour = (cls) => colour(CLASSES.includes(cls) ? `--c-${cls}` : "--c-background");

/* kind: decode (solid), prefill (stripes), embed (checks). */
export function pattern(g, base, kind) {
  const name = `${base}/${kind}`;
  if (!cache.has(name)) cache.set(name, g.createPattern(tile(base, kind), "repeat"));
  return cache.get(name);
}

/* Persons in the order in which they appear, each as far from the last as the circle of hues lets. */
const people = [];
export function personColour(name) {
  let i = people.indexOf(name ?? "");
  if (i < 0) i = people.push(name ?? "") - 1;
  const hue = (45 + i * 137.5) % 360;
  return isDark() ? `oklch(0.76 0.13 ${hue})` : `oklch(0.56 0.15 ${hue})`;
}
