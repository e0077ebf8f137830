// The page: sliders to a question, a question to rows and curves. Only bind() knows the browser.
"use strict";

// Label, unit, path in the question, shown = stored / scale, least, most; all are logarithmic but
// where the least is 0.
const SLIDERS = [
  ["prompt", "tokens", ["day", "prompt_tokens"], 1, 256, 262144],
  ["KV of a token", "bytes", ["case", "kv", "whole_bytes"], 1, 1024, 4194304],
  ["step, fixed", "ms", ["case", "prefill", "a_s"], 1e-3, 0, 100],
  ["computing, linear", "us a token", ["case", "prefill", "c_s_per_token"], 1e-6, 0.1, 5000],
  ["computing, quadratic", "ps a token squared", ["case", "prefill", "d_s_per_token2"], 1e-12, 0, 20000],
  ["GPUs", "", ["case", "prefill", "gpus"], 1, 1, 64],
  ["store", "GB/s", ["case", "store", "bytes_s"], 1e9, 0.05, 200],
  ["a load, fixed", "ms", ["case", "store", "fixed_s"], 1e-3, 0, 1000],
  ["hits", "% of requests", ["day", "hit_rate"], 0.01, 0, 100],
  ["requests", "a day", ["day", "requests"], 1, 100, 100000000],
  ["kept in the store", "GB of KV", ["day", "stored_bytes"], 1e9, 1, 1000000],
  ["GPU-hour", "money", ["prices", "gpu_hour"], 1, 0, 20],
  ["GB of memory a month", "money", ["prices", "ram_gb_month"], 1, 0, 20],
];
const WHOLE = ["prompt_tokens", "gpus"];
const STEPS = 1000;
const LENGTHS = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072];

function digits(value, count = 3) {
  if (!Number.isFinite(value)) return "never";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(count)));
}

function seconds(value) {
  return value < 1 ? `${digits(value * 1e3)} ms` : `${digits(value)} s`;
}

// Where a value stands on its slider, 0 to STEPS, and back.
function toStep(value, least, most) {
  const at = least > 0 ? Math.log(value / least) / Math.log(most / least) : Math.sqrt(value / most);
  return Math.round(STEPS * Math.min(1, Math.max(0, at)));
}

function fromStep(step, least, most) {
  const at = step / STEPS;
  return least > 0 ? least * (most / least) ** at : most * at * at;
}

function get(question, path) {
  return path.reduce((found, name) => found[name], question);
}

function put(question, path, value) {
  const name = path[path.length - 1];
  get(question, path.slice(0, -1))[name] = WHOLE.includes(name) ? Math.round(value) : value;
}

// What the page says: pairs of a name and a sentence.
function rows(question) {
  const { at, bill, crossover_tokens: cross, bytes_per_token: per } = answer(question);
  const sooner = at.hit_s < at.compute_s;
  const traffic = bill.read_bytes_s + bill.written_bytes_s;
  const times = `${digits(at.compute_s / at.hit_s)} times sooner`;
  let verdict = `pays in time (${times}), not in money`;
  if (!sooner) verdict = "does not pay: computing is sooner";
  else if (traffic > question.case.store.bytes_s) {
    verdict = "does not pay: the store cannot carry a day's traffic";
  } else if (bill.saved_money > 0) verdict = `pays: first token ${times}, money saved`;
  return [
    ["verdict", verdict],
    ["KV", `${digits(per)} bytes a token, ${digits(at.kv_bytes / 1e9)} GB of the prompt`],
    ["computing the prompt", seconds(at.compute_s)],
    ["loading it", `${seconds(at.load_s)}, first token of a hit after ${seconds(at.hit_s)}`],
    ["break-even bandwidth", `${digits(at.break_even_bytes_s / 1e9)} GB/s`],
    ["crossover", cross === 0 ? "loading is sooner at every length" :
      cross === Infinity ? "computing is sooner at every length" : `${digits(cross)} tokens`],
    ["GPU-hours a day", `${digits(bill.gpu_s_before / 3600)} become ${digits(bill.gpu_s_after / 3600)}`],
    ["GPUs freed", digits((bill.gpu_s_before - bill.gpu_s_after) / DAY_S)],
    ["saved on GPUs a day", digits(bill.gpu_money_saved, 4)],
    ["memory a day", `${digits(bill.ram_money, 4)} for ${digits(bill.ram_bytes / 1e9)} GB`],
    ["saved in all a day", digits(bill.saved_money, 4)],
    ["a month of memory is paid back in", `${digits(bill.payback_days)} days`],
    ["traffic of the store", `${digits(bill.read_bytes_s / 1e9)} GB/s read, ` +
      `${digits(bill.written_bytes_s / 1e9)} GB/s written`],
  ];
}

// Times to the first token over the length of the prompt, as an SVG drawing.
function drawing(question) {
  const one = question.case;
  const lines = [
    ["computed", "", LENGTHS.map((n) => computeS(one.prefill, n))],
    ["a hit", "7 4", LENGTHS.map((n) => loadedS(one, n, keptTokens(one, n)))],
  ];
  const all = lines.flatMap((line) => line[2]);
  const low = Math.floor(Math.log10(Math.min(...all)));
  const high = Math.ceil(Math.log10(Math.max(...all)));
  const x = (i) => 60 + (i * 520) / (LENGTHS.length - 1);
  const y = (s) => 260 - ((Math.log10(s) - low) * 230) / Math.max(1, high - low);
  const parts = [];
  for (let power = low; power <= high; power++) {
    const at = y(10 ** power).toFixed(1);
    parts.push(`<line x1="60" x2="580" y1="${at}" y2="${at}" class="grid"/>`);
    parts.push(`<text x="54" y="${at}" class="left">${seconds(10 ** power)}</text>`);
  }
  LENGTHS.forEach((n, i) => parts.push(`<text x="${x(i)}" y="280">${n.toLocaleString("en-US")}</text>`));
  lines.forEach(([label, dash, values], index) => {
    const points = values.map((s, i) => `${x(i).toFixed(1)},${y(s).toFixed(1)}`).join(" ");
    parts.push(`<polyline points="${points}" stroke-dasharray="${dash}"/>`);
    parts.push(`<line x1="80" x2="120" y1="${30 + 18 * index}" y2="${30 + 18 * index}" class="key" stroke-dasharray="${dash}"/>`);
    parts.push(`<text x="126" y="${34 + 18 * index}" class="label">${label}</text>`);
  });
  parts.push('<text x="320" y="300">prompt, tokens (up: time to the first token)</text>');
  return parts.join("");
}

function bind(question) {
  const fill = () => {
    document.getElementById("rows").innerHTML = rows(question)
      .map(([name, text]) => `<tr><th scope="row">${name}</th><td>${text}</td></tr>`).join("");
    document.getElementById("drawing").innerHTML = drawing(question);
  };
  const box = document.getElementById("sliders");
  for (const [label, unit, path, scale, least, most] of SLIDERS) {
    const row = document.createElement("label");
    const name = document.createElement("span");
    const slider = document.createElement("input");
    const typed = document.createElement("input");
    name.textContent = unit ? `${label}, ${unit}` : label;
    Object.assign(slider, { type: "range", min: 0, max: STEPS });
    Object.assign(typed, { type: "number", min: least, step: "any" });
    slider.setAttribute("aria-label", name.textContent);
    const show = () => {
      const value = get(question, path) / scale;
      slider.value = toStep(value, least, most);
      typed.value = Number(value.toPrecision(6));
    };
    slider.addEventListener("input", () => {
      put(question, path, Number(fromStep(Number(slider.value), least, most).toPrecision(3)) * scale);
      typed.value = Number((get(question, path) / scale).toPrecision(6));
      fill();
    });
    typed.addEventListener("change", () => {
      const value = Number(typed.value);
      if (typed.value !== "" && value >= least) put(question, path, value * scale);
      show();
      fill();
    });
    show();
    row.append(name, slider, typed);
    box.append(row);
  }
  fill();
}
