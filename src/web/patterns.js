/* Fills for canvases: a colour for the class, a pattern for the phase, so that neither colour-blind
 * eyes nor a grey print lose what is what. */
import {colour} from "./base.js";

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

/* Some colours that can be told apart, for persons: the same name, the same colour. */
const PEOPLE = ["voice", "chat", "document", "completion", "utility"];
export function personColour(name) {
  let hash = 7;
  for (const ch of name ?? "") hash = (hash * 31 + ch.codePointAt(0)) >>> 0;
  return colour(`--c-${PEOPLE[hash % PEOPLE.length]}`);
}
