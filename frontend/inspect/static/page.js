// Puts the parts together: stream -> model -> what is on the page.

import { follow } from "./events.js";
import { Filter, Model } from "./model.js";
import { Table, drawCells, drawMeter, setIfNew } from "./tables.js";
import { Timeline } from "./timeline.js";

const KEY = "ttserve-inspect-key";
const SHOWN_STEPS = 100;
const $ = (id) => document.getElementById(id);

let model = new Model();
let device = null;
let paused = false;
let stop = new AbortController();
let drawing = false;

const number = (text) => ({ text, kind: "number" });
const ms = (field) => number((step) => (step[field] / 1000).toFixed(2));
const idOf = (item) => item.external_request_id || item.request_id;

const lanes = new Table($("lanes"), [
  number((lane) => lane.lane),
  { draw: drawRowsOf },
  number((lane) => `${lane.rows.length}/${lane.total_rows}`),
  number((lane) => lane.waiting.length),
  { draw: (cell, lane) => drawMeter(cell, used(lane), lane.total_blocks, `${used(lane)} of ${lane.total_blocks} KV blocks used`) },
  number(used),
  number((lane) => lane.free_blocks),
], (lane) => lane.lane);

const sessions = new Table($("sessions"), [
  number((session) => session.session_number),
  { text: (session) => session.frontend_name },
  { text: (session) => session.peer, kind: "id" },
  number((session) => session.live_requests),
  number((session) => session.merged_steps),
  number((session) => duration(session.age_seconds)),
], (session) => session.session_number);

const rows = new Table($("rows"), [
  number((row) => row.row),
  { text: idOf, kind: "id" },
  { text: (row) => model.doing(row.request_id).words },
  number((row) => row.prompt_tokens),
  number((row) => row.output_tokens),
  number((row) => row.computed_tokens),
  number((row) => row.blocks),
  number((row) => row.preemptions),
  number((row) => row.session_number),
], (row) => `${row.row} ${row.request_id}`);

const waiting = new Table($("waiting"), [
  number((entry) => entry.lane),
  { text: (entry) => entry.request_id, kind: "id" },
  { text: (entry) => entry.reason },
  number((entry) => entry.prompt_tokens),
  number((entry) => duration(entry.waited_ms / 1000)),
  number((entry) => entry.session_number),
], (entry) => entry.request_id);

const steps = new Table($("steps"), [
  number((step) => step.number),
  { text: (step) => step.phase, why: (step) => step.phase_reason },
  number((step) => step.lanes.map((lane) => lane.rows.length).join("+")),
  number((step) => `${step.scheduled_tokens} → ${step.produced_tokens}`),
  { text: (step) => step.sampling_site, why: (step) => step.sampling_reason },
  { text: (step) => (step.overlapped ? "yes" : "no"), why: (step) => step.overlap_reason },
  ms("host_gap_us"), ms("host_us"), ms("device_us"), ms("readback_us"),
  number((step) => step.waiting),
  { text: notes, kind: "notes" },
], (step) => step.number, (step) => (step.error ? "failed" : ""));

const timeline = new Timeline($("timeline"), $("legend"));

function used(lane) {
  return lane.total_blocks - lane.free_blocks;
}

function drawRowsOf(cell, lane) {
  const held = new Map(lane.rows.map((row) => [row.row - lane.lane * lane.total_rows, row]));
  const letters = Array.from({ length: lane.total_rows }, (_, index) => {
    const row = held.get(index);
    if (row === undefined) return { letter: "·", phase: "", title: `row ${index}: free` };
    const { letter, phase, words } = model.doing(row.request_id);
    return { letter: letter === "·" ? "?" : letter, phase, title: `row ${index}: ${idOf(row)} ${words}` };
  });
  drawCells(cell, letters, `${held.size} of ${lane.total_rows} rows held`);
}

function notes(step) {
  const ends = step.lanes.flatMap((lane) =>
    lane.rows.filter((row) => row[7]).map((row) => `${row[2] || row[1]} ended: ${row[7]}`));
  const preempted = step.preempted.map((id) => `${id} preempted`);
  return [step.error, ...preempted, ...ends].filter(Boolean).join("; ");
}

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);

function draw() {
  drawing = false;
  showLink();
  if (paused || model.state === null) return;
  const filter = new Filter($("filter-lane").value, $("filter-phase").value, $("filter-request").value);
  const state = model.state;
  const chosen = state.lanes.filter((lane) => filter.letsLane(lane.lane));
  showFigures(state);
  offerLanes(state.lanes);
  lanes.show(chosen);
  sessions.show(state.sessions);
  rows.show(chosen.flatMap((lane) => lane.rows)
    .filter((row) => filter.letsRequest(row.request_id, row.external_request_id)));
  waiting.show(chosen.flatMap((lane) => lane.waiting.map((entry) => ({ ...entry, lane: lane.lane })))
    .filter((entry) => filter.letsRequest(entry.request_id)));
  const matching = model.steps.filter((step) => filter.lets(step));
  timeline.draw(matching);
  steps.show(matching.slice(-SHOWN_STEPS).reverse());
}

function showLink() {
  const live = model.trouble === "";
  const link = $("link");
  const kind = live ? "live" : model.trouble === "connecting" ? "connecting" : "lost";
  setIfNew(link.dataset, "link", kind);
  setIfNew(document.body.dataset, "link", kind);
  const standing = model.state?.paused ? "live, engine paused" : "live";
  setIfNew(link, "textContent", live ? standing : model.trouble);
}

function showFigures(state) {
  const rates = model.rates();
  const total = (of) => state.lanes.reduce((sum, lane) => sum + of(lane), 0);
  const blocks = total((lane) => lane.total_blocks);
  const figures = {
    "step-rate": rates.steps.toFixed(1),
    "token-rate": rates.tokens.toFixed(0),
    "decode-share": percent(rates.decode),
    "overlap-share": percent(rates.overlapped),
    "device-share": percent(rates.device),
    "rows-held": `${total((lane) => lane.rows.length)}/${total((lane) => lane.total_rows)}`,
    "waiting-count": total((lane) => lane.waiting.length),
    "kv-used": percent(blocks ? total(used) / blocks : null),
    "in-flight": state.steps_in_flight,
    grammars: state.grammars,
    newest: state.step_number,
    lost: model.lost,
  };
  for (const [id, value] of Object.entries(figures)) setIfNew($(id), "textContent", String(value));
  const up = `up ${duration(state.uptime_seconds)}`;
  setIfNew($("model"), "textContent", `${state.served_names[0] ?? ""} · ${up}`);
}

function offerLanes(all) {
  const select = $("filter-lane");
  if (select.options.length === all.length + 1) return;
  select.length = 1;
  for (const lane of all) select.add(new Option(lane.lane));
}

function offerDevices(names) {
  const select = $("device");
  const chosen = device ?? names[0];
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
  $("device-choice").hidden = names.length < 2;
}

function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(draw);
}

function look() {
  stop.abort();
  stop = new AbortController();
  model = new Model();
  const mine = model;
  follow(device, sessionStorage.getItem(KEY), stop.signal, {
    message(message) {
      if (message.devices !== undefined) offerDevices(message.devices);
      mine.take(message);
      drawSoon();
    },
    trouble(text) {
      mine.trouble = text;
      drawSoon();
    },
    deviceGone() {
      device = null;
      look();
    },
    keyWanted() {
      mine.trouble = sessionStorage.getItem(KEY) ? "the key was refused" : "an API key is wanted";
      $("key-form").hidden = false;
      $("key").focus();
      drawSoon();
    },
  });
  drawSoon();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value);
  $("key").value = "";
  $("key-form").hidden = true;
  look();
});
$("device").addEventListener("change", (event) => {
  device = event.target.value;
  look();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  $("pause").textContent = paused ? "Go on" : "Pause view";
  drawSoon();
});
$("filter").addEventListener("input", drawSoon);
$("filter").addEventListener("reset", () => setTimeout(drawSoon));
$("filter").addEventListener("submit", (event) => event.preventDefault());
setInterval(drawSoon, 1000); // rates fall when nothing happens

look();
