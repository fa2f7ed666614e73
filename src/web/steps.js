/* The fire: each column a step, newest at the right, its parts by class and phase. */
import {$, brief, className, colour, fitCanvas, h, onChange, setText, t, table} from "./base.js";
import {live, on} from "./live.js";
import {classColour, forgetPatterns, pattern} from "./patterns.js";

const COLUMN = 8, GAP = 2; /* CSS pixels */
const LEFT = 34, TOP = 20, BOTTOM = 16;
const IDLE_MS = 500; /* a longer pause between two steps is shown as one */

let canvas, scale = 10, held = null, cursor = null, due = false;

const shown = () => held ?? live.steps;

/* What is drawn: steps, and a mark where the engine had nothing to do. Newest last. */
function columns(n) {
  const out = [];
  const steps = shown();
  for (let i = steps.length - 1; i >= 0 && out.length < n; i--) {
    out.push({step: steps[i], i});
    const before = steps[i - 1];
    if (before && steps[i].t_ms - steps[i].ms - before.t_ms > IDLE_MS) out.push({idle: true});
  }
  return out.slice(0, n).reverse();
}

/* The largest of what is shown, but an outlier does not flatten the rest. */
function wantedScale(list) {
  const ms = list.filter((c) => c.step).map((c) => c.step.ms).sort((a, b) => a - b);
  if (ms.length === 0) return scale;
  const high = ms[Math.floor((ms.length - 1) * 0.92)];
  const limits = list.map((c) => c.step?.limit_ms ?? 0).filter((x) => x > 0).sort((a, b) => a - b);
  const limit = limits.length ? limits[Math.floor(limits.length / 2)] : 0;
  return Math.max(1, high * 1.3, limit > 0 && limit < high * 12 ? limit * 1.25 : 0);
}

const calm = matchMedia("(prefers-reduced-motion: reduce)");

function drawAxis(g, w, base, y) {
  g.font = "11px system-ui, sans-serif";
  g.fillStyle = colour("--muted");
  g.strokeStyle = colour("--line");
  g.lineWidth = 1;
  g.textAlign = "right";
  g.textBaseline = "middle";
  const rough = scale / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map((k) => k * unit).find((v) => v >= rough);
  for (let v = 0; v <= scale; v += tick) {
    g.beginPath();
    g.moveTo(LEFT, Math.round(y(v)) + 0.5);
    g.lineTo(w, Math.round(y(v)) + 0.5);
    g.stroke();
    g.fillText(brief(v), LEFT - 6, y(v));
  }
  g.textAlign = "left";
  g.fillText("ms", 2, TOP - 10);
}

function drawStep(g, x, base, y, step) {
  let at = 0;
  for (const part of step.parts) {
    const bottom = y(at), top = Math.max(TOP - 8, y(at + part.ms));
    at += part.ms;
    g.fillStyle = pattern(g, classColour(part.class), part.phase);
    g.fillRect(x, top, COLUMN - GAP, Math.max(1, bottom - top - 0.5));
  }
  if (step.parts.length === 0) {
    g.fillStyle = colour("--line");
    g.fillRect(x, y(step.ms), COLUMN - GAP, base - y(step.ms));
  }
  if (step.ms > scale * 1.1) { /* torn off: it is higher than the picture */
    g.fillStyle = colour("--surface");
    g.fillRect(x - 1, TOP - 2, COLUMN, 3);
  }
  if (step.held_ms > 0) {
    g.fillStyle = colour("--ink");
    g.beginPath();
    g.moveTo(x - 1, base + 7);
    g.lineTo(x + COLUMN - GAP + 1, base + 7);
    g.lineTo(x + (COLUMN - GAP) / 2, base + 2);
    g.fill();
  }
}

function drawBudget(g, list, x, y) {
  g.strokeStyle = colour("--ink");
  g.lineWidth = 1.5;
  g.setLineDash([5, 3]);
  g.beginPath();
  let last = null;
  list.forEach((c, i) => {
    const limit = c.step?.limit_ms;
    if (!(limit > 0) || limit > scale) {
      last = null;
      return;
    }
    if (last === null) g.moveTo(x(i) - 1, y(limit));
    else g.lineTo(x(i) - 1, y(limit));
    g.lineTo(x(i) + COLUMN - 1, y(limit));
    last = limit;
  });
  g.stroke();
  g.setLineDash([]);
  const newest = list.findLast((c) => c.step?.limit_ms > 0 && c.step.limit_ms <= scale);
  if (!newest) return;
  const label = t("steps.budget", {ms: brief(newest.step.limit_ms)});
  g.font = "600 11px system-ui, sans-serif";
  g.textAlign = "left";
  g.textBaseline = "bottom";
  const width = g.measureText(label).width;
  g.fillStyle = colour("--surface");
  g.globalAlpha = 0.85;
  g.fillRect(LEFT + 4, y(newest.step.limit_ms) - 17, width + 8, 15);
  g.globalAlpha = 1;
  g.fillStyle = colour("--ink");
  g.fillText(label, LEFT + 8, y(newest.step.limit_ms) - 3);
}

function draw() {
  due = false;
  if (!canvas.isConnected || canvas.clientWidth === 0) return;
  const {g, w, h: height} = fitCanvas(canvas);
  const list = columns(Math.floor((w - LEFT) / COLUMN));
  const wanted = wantedScale(list);
  scale = wanted > scale || calm.matches ? wanted : scale * 0.95 + wanted * 0.05;
  const base = height - BOTTOM;
  const y = (ms) => base - (ms / scale) * (base - TOP);
  const x = (i) => w - (list.length - i) * COLUMN;
  drawAxis(g, w, base, y);
  list.forEach((c, i) => {
    if (c.step) drawStep(g, x(i), base, y, c.step);
    else {
      g.fillStyle = colour("--muted");
      for (let k = 0; k < 3; k++) g.fillRect(x(i) + 2, base - 4 - k * 6, 2, 2);
    }
    if (c.step && cursor === c.step.n) {
      g.strokeStyle = colour("--ink");
      g.lineWidth = 2;
      g.strokeRect(x(i) - 1.5, TOP - 10, COLUMN + 1, base - TOP + 11);
    }
  });
  drawBudget(g, list, x, y);
  $("#steps-none").hidden = shown().length > 0;
}

function redraw() {
  if (due) return;
  due = true;
  requestAnimationFrame(draw);
}

/* ---- Reading one step ---- */

function describe(step) {
  const limit = step.limit_ms > 0 ? `${brief(step.limit_ms)} ms` : t("steps.open");
  const parts = step.parts.map((p) => t("steps.part", {class: className(p.class),
    phase: t(`phase.${p.phase}`), seqs: p.seqs, tokens: p.tokens, ms: brief(p.ms)}));
  const heldFor = step.held_ms > 0 ? [t("steps.held", {ms: brief(step.held_ms)})] : [];
  return [t("steps.one", {n: step.n, ms: brief(step.ms), predicted: brief(step.predicted_ms), limit}),
    ...parts, ...heldFor].join(" ");
}

function choose(step) {
  cursor = step?.n ?? null;
  const steps = shown();
  const text = step ? describe(step) : t("steps.help");
  setText($("#steps-detail"), text);
  canvas.setAttribute("aria-valuemax", Math.max(1, steps.length));
  canvas.setAttribute("aria-valuenow", step ? steps.indexOf(step) + 1 : steps.length);
  canvas.setAttribute("aria-valuetext", text);
  redraw();
}

function hold(yes) {
  held = yes ? [...live.steps] : null;
  $("#steps-hold").checked = yes;
  if (!yes) choose(null);
  redraw();
}

function stepAt(event) {
  const list = columns(Math.floor((canvas.clientWidth - LEFT) / COLUMN));
  const fromRight = Math.floor((canvas.getBoundingClientRect().right - event.clientX) / COLUMN);
  return list[list.length - 1 - fromRight]?.step ?? null;
}

function onKey(event) {
  const moves = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9};
  if (event.key === "Escape") {
    hold(false);
    return;
  }
  const move = moves[event.key];
  if (move === undefined || live.steps.length === 0) return;
  event.preventDefault();
  if (!held) hold(true);
  const at = held.findIndex((s) => s.n === cursor);
  const from = at < 0 ? held.length - (move < 0 ? 0 : 1) : at;
  choose(held[Math.max(0, Math.min(held.length - 1, from + move))]);
}

/* ---- Legend and table ---- */

function legend() {
  const box = $("#steps-legend");
  const classes = live.hello?.classes?.map((c) => c.name) ?? [];
  box.replaceChildren(
    ...classes.map((c) => h("li", {title: t(`class.about.${c}`)},
      h("span", {class: `swatch c-${c}`}), className(c))),
    ...["decode", "prefill", "embed"].map((p) => h("li", {},
      h("span", {class: `swatch p-${p}`}), t(`phase.${p}`))));
}

function fillTable() {
  const details = $("#steps-table");
  if (!details.open || held) return;
  const rows = shown().slice(-20).reverse().map((s) => [String(s.n), s.model ?? "",
    `${brief(s.ms)} ms`, `${brief(s.predicted_ms)} ms`, s.limit_ms > 0 ? `${brief(s.limit_ms)} ms` : "–",
    s.parts.map((p) => `${className(p.class)} ${t(`phase.${p.phase}`)} ${p.tokens}`).join(", ")]);
  $("div", details).replaceChildren(table(t("steps.label"), ["step", "model", "ms", "predicted",
    "limit", "parts"].map((c) => t(`col.${c}`)), rows));
}

export function startSteps() {
  canvas = $("#steps");
  let lastDraw = 0;
  on("steps", () => {
    if (held || (calm.matches && Date.now() - lastDraw < 1000)) return;
    lastDraw = Date.now();
    redraw();
  });
  on("state", () => {
    fillTable();
    if (!held && cursor === null) canvas.setAttribute("aria-valuemax", Math.max(1, live.steps.length));
  });
  on("hello", () => { legend(); redraw(); });
  onChange("language", () => { legend(); choose(null); fillTable(); });
  onChange("theme", () => { forgetPatterns(); redraw(); });
  new ResizeObserver(redraw).observe(canvas);
  canvas.addEventListener("pointermove", (e) => {
    const step = stepAt(e);
    if (step && step.n !== cursor) choose(step);
  });
  canvas.addEventListener("pointerleave", () => { if (!held) choose(null); });
  canvas.addEventListener("keydown", onKey);
  $("#steps-hold").addEventListener("change", (e) => hold(e.target.checked));
  $("#steps-table").addEventListener("toggle", fillTable);
  choose(null);
}
