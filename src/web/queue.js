/* Lists of requests: who is being answered, who waits and why; with what one may do about them. */
import {act} from "./api.js";
import {$, className, h, keyed, num, setText, t, time} from "./base.js";
import {modelOf} from "./live.js";
import {who} from "./sentence.js";
import {showStory} from "./story.js";

const MOST = 12; /* rows of a list; the rest is counted */

function makeRow(r) {
  const id = encodeURIComponent(r.id);
  const button = (name, fn) => h("button", {class: "small", "data-act": name, onclick: fn}, t(`act.${name}`));
  return h("li", {class: "request"},
    h("span", {class: `chip c-${r.class}`}), h("span", {class: "who"}),
    h("span", {class: "what"}),
    h("progress", {max: 1, value: 0}),
    h("span", {class: "acts"},
      button("why", () => showStory(r.id)),
      button("pause", (e) => act(e.target, `/v1/requests/${id}/pause`)),
      button("resume", (e) => act(e.target, `/v1/requests/${id}/resume`)),
      button("stop", (e) => act(e.target, `/v1/requests/${id}/cancel`))));
}

const isPaused = (r) => r.paused === true || r.waiting_for === "paused";

function what(r) {
  if (isPaused(r)) return `${time(r.total_ms)} · ${t("reason.paused")}`;
  if (r.state === "waiting") {
    const place = r.position > 0 ? `${t("queue.position", {n: r.position})} · ` : "";
    return `${place}${time(r.total_ms)} · ${t(`reason.${r.waiting_for ?? "none"}`)}`;
  }
  if (!r.output_tokens) return `${time(r.total_ms)} · ${t("queue.reading", {n: num(r.prompt_tokens)})}`;
  return `${time(r.total_ms)} · ${t("queue.tokens", {n: num(r.output_tokens), max: num(r.max_output_tokens)})}`;
}

function updateRow(el, r) {
  setText($(".chip", el), className(r.class));
  setText($(".who", el), [who(r), modelOf(r)].filter(Boolean).join(" · "));
  setText($(".what", el), what(r));
  const bar = $("progress", el);
  bar.value = r.max_output_tokens > 0 ? r.output_tokens / r.max_output_tokens : 0;
  bar.hidden = r.state === "waiting";
  bar.setAttribute("aria-label", what(r));
  for (const b of el.querySelectorAll("button")) {
    const name = b.dataset.act;
    setText(b, t(`act.${name}`));
    b.setAttribute("aria-label", `${t(`act.${name}`)} – ${className(r.class)}, ${who(r)}`);
    if (name === "why") b.hidden = !r.id;
    else if (!r.id) b.hidden = true;
    else if (name === "pause") b.hidden = isPaused(r);
    else if (name === "resume") b.hidden = !isPaused(r);
  }
}

/* Interactive ones first, then the longest waits. */
const order = (a, b) => (a.class === "background") - (b.class === "background") || b.total_ms - a.total_ms;

export function fillQueue(list, records) {
  const sorted = [...records].sort(order);
  keyed(list, sorted.slice(0, MOST), (r, i) => `${r.id ?? `other-${i}`}/${r.index}`, makeRow, updateRow);
  const note = list.nextElementSibling;
  note.hidden = records.length > 0 && sorted.length <= MOST;
  setText(note, records.length === 0 ? t("queue.nobody") : t("queue.more", {n: num(sorted.length - MOST)}));
}
