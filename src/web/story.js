/* Why did it wait: one request's story as a sentence, a picture of its time, and numbers. */
import {ApiError, getJson, inWords} from "./api.js";
import {$, brief, className, h, num, percent, t, time} from "./base.js";
import {largestCause} from "./sentence.js";

const SLOW_MS = 300; /* a wait that nobody feels is none */

/* What the server's timeline calls its work; everything else in it is a wait. */
const WORK = {prefill: {kind: "read", label: "story.read"}, embed: {kind: "read", label: "phase.embed"},
  decode: {kind: "write", label: "story.write"}};

function ofTimeline(timeline) {
  return timeline.slice(0, -1).map(({at_ms, what}, i) => {
    const work = WORK[what];
    return {ms: timeline[i + 1].at_ms - at_ms, kind: work?.kind ?? `w-${what}`, label: work ? t(work.label) : t(`reason.${what}`)};
  }).filter((p) => p.ms > 0);
}

/* Parts of its time: [{kind, label, ms}] in the order in which they happened; where the server keeps no
 * timeline, sums. */
export function parts(r) {
  if (r.timeline?.length > 1) return ofTimeline(r.timeline);
  const out = [];
  const waits = Object.entries(r.wait_ms ?? {}).filter(([, ms]) => ms > 0);
  let queued = r.queued_ms ?? 0;
  for (const [cause, ms] of waits.sort((a, b) => b[1] - a[1])) {
    out.push({kind: `w-${cause}`, label: t(`reason.${cause}`), ms});
    queued -= ms;
  }
  if (queued > 0.5) out.push({kind: "w-none", label: t("story.queue"), ms: queued});
  const waited = out.reduce((sum, p) => sum + p.ms, 0);
  const first = r.ttft_ms ?? r.total_ms;
  if (first > waited) out.push({kind: "read", label: t("story.read"), ms: first - waited});
  if (r.total_ms > first) out.push({kind: "write", label: t("story.write"), ms: r.total_ms - first});
  return out;
}

export function storySentence(r) {
  const {cause} = largestCause(r);
  if (r.ttft_ms === undefined)
    return t("story.waiting", {queued: time(r.total_ms), reason: t(`why.${r.waiting_for ?? cause}`)});
  if (r.ttft_ms < SLOW_MS) return t("story.quick", {ttft: time(r.ttft_ms)});
  return t("story.sentence", {queued: time(r.queued_ms), reading: time(r.ttft_ms - r.queued_ms),
    ttft: time(r.ttft_ms), reason: t(`why.${cause}`)});
}

/* One part of the bar; the pieces in which a prompt was read are told apart by lines. */
function partElement(p, all, chunks) {
  const lines = p.kind === "read" ? Math.max(0, Math.min(chunks, 40) - 1) : 0;
  const el = h("span", {class: `part ${p.kind}`, title: `${p.label}: ${time(p.ms)}`},
    ...Array.from({length: lines}, () => h("i")));
  el.style.flexGrow = String(Math.max(p.ms / all, 0.004));
  return el;
}

/* Where the first word had been expected. */
function prediction(r, all) {
  if (!(r.predicted_ttft_ms >= 0) || r.predicted_ttft_ms > all) return null;
  const el = h("span", {class: "expected", title: `${t("story.predicted")}: ${time(r.predicted_ttft_ms)}`});
  el.style.left = `${(r.predicted_ttft_ms / all) * 100}%`;
  return el;
}

/* One entry for each kind, with its time in all. */
function summed(list) {
  const sums = new Map();
  for (const p of list) {
    const had = sums.get(p.kind);
    if (had) had.ms += p.ms;
    else sums.set(p.kind, {...p});
  }
  return [...sums.values()];
}

function picture(r) {
  const list = parts(r);
  const all = list.reduce((sum, p) => sum + p.ms, 0) || 1;
  const expected = prediction(r, all);
  return h("figure", {}, h("figcaption", {}, t("story.picture")),
    h("div", {class: "story-bar", "aria-hidden": "true"}, ...list.map((p) => partElement(p, all, r.timeline ? 1 : r.chunks)), expected),
    h("ol", {class: "legend"}, ...summed(list).map((p) => h("li", {},
      h("span", {class: `swatch ${p.kind}`}), `${p.label} ${time(p.ms)}`)),
    expected && h("li", {}, h("span", {class: "swatch expected"}), `${t("story.predicted")} ${time(r.predicted_ttft_ms)}`)));
}

/* With whom its steps were shared: of all its steps, how many beside each class. */
function company(r) {
  const list = Object.entries(r.steps_with ?? {}).sort((a, b) => b[1] - a[1]);
  if (list.length === 0 || !r.steps) return null;
  return h("figure", {}, h("figcaption", {}, t("story.company")),
    ...list.map(([c, n]) => {
      const fill = h("span", {class: `swatch c-${c}`});
      fill.style.width = `${(n / r.steps) * 100}%`;
      return h("div", {class: "beside"}, h("span", {}, className(c)), h("span", {class: "track"}, fill),
        h("span", {}, t("story.of", {n: num(n), all: num(r.steps)})));
    }));
}

function facts(r) {
  const rows = [
    ["chat.class", className(r.class)],
    ["story.prompt", t("story.prompt_of", {n: num(r.prompt_tokens), cached: num(r.cached_tokens)})],
    ["story.answer", t("queue.tokens", {n: num(r.output_tokens), max: num(r.max_output_tokens)})],
    ["story.chunks", num(r.chunks)],
    ["story.steps", num(r.steps)],
    ["story.predicted", time(r.predicted_ttft_ms)],
    ["story.error", r.steps_predicted_ms > 0
      ? `${brief(r.steps_measured_ms)} / ${brief(r.steps_predicted_ms)} ms (${percent(r.steps_measured_ms / r.steps_predicted_ms - 1)})` : "–"],
    ["story.charged", time(r.charged_ms)],
  ];
  if (r.preempted > 0) rows.push(["story.preempted", t("story.times", {n: num(r.preempted)})]);
  return h("dl", {class: "facts"}, ...rows.flatMap(([k, v]) => [h("dt", {}, t(k)), h("dd", {}, v)]));
}

function content(r) {
  return h("section", {},
    h("p", {class: "lead"}, storySentence(r)),
    r.relegated ? h("p", {}, t("story.relegated")) : null,
    picture(r), company(r), h("h3", {}, t("story.facts")), facts(r));
}

/* user: without keys, whose requests are asked for. */
export async function fetchStory(id, user) {
  const query = user ? `?user=${encodeURIComponent(user)}` : "";
  const story = await getJson(`/v1/requests/${encodeURIComponent(id)}${query}`, {quiet: true});
  return story.sequences ?? [];
}

export async function showStory(id, user) {
  const body = h("div");
  const dialog = h("dialog", {class: "story", "aria-labelledby": "story-title"},
    h("h2", {id: "story-title"}, t("story.title")),
    h("p", {class: "id"}, t("story.id", {id})), body,
    h("form", {method: "dialog", class: "buttons"}, h("button", {class: "main"}, t("act.close"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const sequences = await fetchStory(id, user);
    body.append(...(sequences.length ? sequences.map(content) : [h("p", {}, t("story.gone"))]));
  } catch (error) {
    body.append(h("p", {class: "bad"},
      error instanceof ApiError && error.status === 404 ? t("story.gone") : inWords(error)));
  }
  $("button", dialog).focus();
}
