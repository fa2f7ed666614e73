/* Who gets how much of the machine. */
import {$, h, keyed, num, onChange, percent, setText, t, time} from "./base.js";
import {live, on} from "./live.js";
import {personColour} from "./patterns.js";
import {fillQueue} from "./queue.js";

const EVEN = 0.9;

function limitsText(limits) {
  const parts = [];
  if (limits?.running > 0) parts.push(t("limit.max_running", {n: num(limits.running)}));
  if (limits?.waiting > 0) parts.push(t("limit.max_waiting", {n: num(limits.waiting)}));
  if (limits?.day_s > 0) parts.push(t("limit.day", {n: num(limits.day_s)}));
  return parts.join(", ") || t("limit.none");
}

const makeRow = () => h("tr", {}, h("th", {scope: "row"}), h("td", {class: "bar-cell"},
  h("span", {class: "bar"}, h("span")), h("span", {class: "value"})),
...["device", "running", "waiting", "weight", "limits"].map((c) => h("td", {class: c})));

function updateRow(el, p) {
  setText($("th", el), p.name || t("somebody"));
  const bar = $(".bar span", el);
  bar.style.width = `${Math.min(100, (p.share ?? 0) * 100)}%`;
  bar.style.background = personColour(p.name);
  setText($(".value", el), percent(p.share, 1));
  setText($(".device", el), time((p.device_s ?? 0) * 1000));
  setText($(".running", el), num(p.running));
  setText($(".waiting", el), num(p.waiting));
  setText($(".weight", el), num(p.weight, 2));
  setText($(".limits", el), limitsText(p.limits));
}

function fill(state) {
  const people = [...(state.people ?? [])].sort((a, b) => (b.share ?? 0) - (a.share ?? 0));
  keyed($("#people-rows"), people, (p) => p.name ?? "", makeRow, updateRow);
  $("#people-none").hidden = people.length > 0;
  $("#people-table").hidden = people.length === 0;
  const jain = state.fairness_jain;
  $("#people-fair").hidden = !Number.isFinite(jain);
  setText($("#people-fair"), `${t("people.fair", {jain: num(jain, 2)})} ${t(jain >= EVEN ? "people.even" : "people.uneven")}`);
  const own = [...(state.running ?? []), ...(state.waiting ?? [])].filter((r) => r.id);
  fillQueue($("#people-own"), own);
}

export function startPeople() {
  const now = () => live.state && fill(live.state);
  on("state", now);
  onChange("language", now);
}
