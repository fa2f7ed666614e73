/* The chat page: conversations of this browser, answers of this server. */
import {ApiError, askKey, getJson, inWords, key} from "./api.js";
import {ask} from "./answer.js";
import {$, announce, brief, className, h, has, keyed, kept, lookControls, num, onChange, setText, t, time,
  translatePage} from "./base.js";
import {conversations, create, download, remove, removeAll, save, titleOf} from "./conversations.js";
import {renderMarkdown} from "./markdown.js";
import {CLASSES} from "./patterns.js";
import {fetchStory, showStory, storySentence} from "./story.js";

const SLOW_MS = 1000; /* a first word later than this is worth a reason */
const LEAST_MS = 80; /* between two renderings of a growing answer */

let current = create();
let running = null; /* AbortController of the answer that comes */

const person = () => (key() ? "" : $("#person").value.trim());

/* ---- Messages ---- */

function statsOf(m) {
  const words = [];
  if (m.ttft_ms !== undefined) words.push(t("chat.ttft", {time: time(m.ttft_ms)}));
  if (m.tps) words.push(t("chat.tps", {n: brief(m.tps)}));
  if (m.tokens) words.push(t("chat.tokens", {n: num(m.tokens)}));
  if (m.cls && has(`class.${m.cls}`)) words.push(t("chat.served", {class: className(m.cls)}));
  return words.join(" · ");
}

/* Fills what an answer has besides its text. */
function finishMessage(el, m) {
  const foot = $(".foot", el);
  foot.replaceChildren(h("span", {}, statsOf(m)));
  if (m.id && m.ttft_ms !== undefined)
    foot.append(h("button", {class: "small", type: "button", onclick: () => showStory(m.id, person())}, t("chat.why")));
  if (m.cut) foot.append(h("span", {}, t("chat.cut")));
  if (m.stopped) foot.append(h("span", {}, t("chat.stopped")));
  if (m.reason) foot.append(h("p", {class: "reason"}, m.reason));
  if (m.error) foot.append(h("p", {class: "bad"}, m.error),
    h("button", {class: "small", type: "button", onclick: retry}, t("chat.retry")));
}

function fillText(el, m, final) {
  const thoughts = $(".thoughts", el);
  thoughts.hidden = !m.thoughts;
  setText($("div", thoughts), m.thoughts ?? "");
  renderMarkdown($(".text", el), m.content, final);
}

function messageElement(m) {
  if (m.role === "user")
    return h("article", {class: "message user", "aria-label": t("chat.you")}, h("div", {class: "text plain"}, m.content));
  const el = h("article", {class: "message assistant", "aria-label": m.model ?? t("app")},
    h("details", {class: "thoughts", hidden: true}, h("summary", {}, t("chat.thinking")), h("div")),
    h("div", {class: "text"}), h("div", {class: "foot"}));
  fillText(el, m, true);
  finishMessage(el, m);
  return el;
}

function showConversation() {
  const {messages} = current;
  $("#thread").replaceChildren(...(messages.length ? messages.map(messageElement)
    : [h("p", {class: "empty"}, t("chat.empty"))]));
  $("#system").value = current.system ?? "";
  toEnd(true);
}

const atEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 120;
function toEnd(force) {
  if (force || atEnd()) scrollTo(0, document.documentElement.scrollHeight);
}

/* ---- Asking ---- */

function requestOf(c) {
  const system = c.system ? [{role: "system", content: c.system}] : [];
  const body = {model: $("#model").value || undefined,
    messages: [...system, ...c.messages.filter((m) => m.content).map(({role, content}) => ({role, content}))]};
  if (person()) body.user = person();
  const cls = $("#class").value;
  return {body, extra: cls ? {"X-Gamasot-Class": cls} : {}};
}

function setRunning(controller) {
  running = controller;
  $("#send").hidden = controller !== null;
  $("#stop").hidden = controller === null;
}

/* Renders as often as it costs little. */
function painter(el, m) {
  let timer = null, cost = 0;
  const paint = () => {
    timer = null;
    const follow = atEnd();
    const began = performance.now();
    fillText(el, m, false);
    cost = performance.now() - began;
    if (follow) toEnd(true);
  };
  return {
    soon() { timer ??= setTimeout(paint, Math.max(LEAST_MS, cost * 6)); },
    stop() { clearTimeout(timer); },
  };
}

/* The server's own word on a slow answer; it is no matter when it has none. */
async function explain(el, m) {
  if (!(m.ttft_ms > SLOW_MS) || !m.id) return;
  try {
    const story = (await fetchStory(m.id, person()))[0];
    if (!story) return;
    m.reason = storySentence(story);
    finishMessage(el, m);
  } catch { /* forgotten, or not allowed */ }
}

function waitingText(m) {
  if (m.queue?.ahead > 0 && Number.isFinite(m.queue.predicted_ttft_ms))
    return t("chat.ahead", {n: num(m.queue.ahead), time: time(m.queue.predicted_ttft_ms)});
  return m.queue?.ahead > 0 ? t("chat.waiting") : t("chat.reading");
}

async function answer(c) {
  const request = requestOf(c); /* without the answer that is to come */
  const m = {role: "assistant", content: "", thoughts: "", model: request.body.model};
  c.messages.push(m);
  const el = messageElement(m);
  $("#thread").append(el);
  toEnd(true);
  const paint = painter(el, m);
  const controller = new AbortController();
  setRunning(controller);
  setText($(".foot", el), t("chat.waiting"));
  announce(t("chat.answering"), true);
  try {
    await ask({...request, signal: controller.signal, answer: m, on: {
      begun: () => setText($(".foot", el), waitingText(m)),
      text: () => {
        setText($(".foot", el), m.ttft_ms === undefined ? "" : t("chat.ttft", {time: time(m.ttft_ms)}));
        paint.soon();
      },
    }});
    announce(t("chat.answered"), true);
  } catch (error) {
    if (controller.signal.aborted) m.stopped = true;
    else m.error = m.id && !(error instanceof ApiError) ? t("err.broken") : inWords(error);
    announce(m.error ?? t("chat.stopped"), true);
  }
  paint.stop();
  delete m.last;
  delete m.queue;
  setRunning(null);
  const follow = atEnd();
  fillText(el, m, true);
  finishMessage(el, m);
  if (follow) toEnd(true);
  await explain(el, m);
  keep(c);
}

function keep(c) {
  if (!save(c)) setText($("#action-note"), t("chat.full"));
  fillList();
}

function submit() {
  const text = $("#prompt").value.trim();
  if (!text || running) return;
  $("#prompt").value = "";
  grow();
  $(".empty")?.remove();
  current.system = $("#system").value.trim();
  const m = {role: "user", content: text};
  current.messages.push(m);
  $("#thread").append(messageElement(m));
  keep(current);
  answer(current);
}

/* The last answer failed or was stopped: the same question again. */
function retry() {
  if (running) return;
  if (current.messages.at(-1)?.role === "assistant") current.messages.pop();
  showConversation();
  answer(current);
}

/* ---- The list ---- */

function open(c) {
  running?.abort();
  current = c;
  showConversation();
  fillList();
  $("#prompt").focus();
}

function makeEntry(c) {
  return h("li", {}, h("button", {class: "entry", type: "button", onclick: () => open(c)}),
    h("button", {class: "small", type: "button", onclick: () => {
      if (!confirm(t("chat.sure"))) return;
      remove(c);
      if (c === current) open(create());
      else fillList();
    }}, "×"));
}

function fillList() {
  keyed($("#list"), conversations(), (c) => c.id, makeEntry, (el, c) => {
    const [entry, drop] = el.children;
    setText(entry, titleOf(c));
    entry.setAttribute("aria-current", c === current ? "true" : "false");
    drop.setAttribute("aria-label", `${t("chat.delete")}: ${titleOf(c)}`);
  });
}

/* ---- The composer ---- */

function grow() {
  const el = $("#prompt");
  el.style.height = "auto";
  el.style.height = `${Math.min(el.scrollHeight + 2, innerHeight * 0.4)}px`;
}

/* Enter that ends a syllable or a word of an input method is not ours. A finger's Enter is a line. */
function onKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  if (matchMedia("(pointer: coarse)").matches && !event.ctrlKey) return;
  event.preventDefault();
  submit();
}

async function fillModels() {
  let list = [];
  try {
    list = (await getJson("/v1/models")).data ?? [];
  } catch (error) {
    setText($("#action-note"), inWords(error));
    if (error instanceof ApiError && error.status === 503) setTimeout(fillModels, 2000);
    return;
  }
  setText($("#action-note"), "");
  $("#model").replaceChildren(...list.map((m) => h("option", {value: m.id}, m.id)));
  const chosen = kept.get("model");
  if (list.some((m) => m.id === chosen)) $("#model").value = chosen;
}

function fillClasses() {
  const had = $("#class").value || kept.get("class") || "";
  $("#class").replaceChildren(h("option", {value: ""}, t("chat.class.auto")),
    ...CLASSES.map((c) => h("option", {value: c}, `${className(c)} – ${t(`class.about.${c}`)}`)));
  $("#class").value = had;
}

function listen() {
  $("#composer").addEventListener("submit", (e) => { e.preventDefault(); submit(); });
  $("#prompt").addEventListener("keydown", onKey);
  $("#prompt").addEventListener("input", grow);
  $("#stop").addEventListener("click", () => { running?.abort(); $("#prompt").focus(); });
  $("#new").addEventListener("click", () => open(create()));
  $("#export").addEventListener("click", download);
  $("#delete-all").addEventListener("click", () => {
    if (!confirm(t("chat.sure"))) return;
    removeAll();
    open(create());
  });
  $("#key-change").addEventListener("click", async () => { if (await askKey()) fillModels(); });
  for (const name of ["model", "class", "person"])
    $(`#${name}`).addEventListener("change", (e) => kept.set(name, e.target.value));
  $("#system").addEventListener("change", (e) => { current.system = e.target.value.trim(); });
  onChange("language", () => { fillClasses(); fillList(); if (!running) showConversation(); });
}

function start() {
  lookControls($("#look"));
  translatePage();
  $("#person").value = kept.get("person") ?? "";
  $("#aside-more").open = matchMedia("(min-width: 800px)").matches;
  fillClasses();
  listen();
  if (conversations().length) current = conversations()[0];
  showConversation();
  fillList();
  fillModels();
  $("#prompt").focus();
}

start();
