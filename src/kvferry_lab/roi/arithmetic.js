// The arithmetic of arithmetic.py and money.py, for the page; the tests run both.
// Units: seconds, bytes, tokens; money in the currency of the prices.
"use strict";

const TOKENS_MAX = 2 ** 30;
const DAY_S = 86400;
const MONTH_DAYS = 30;
const BILLED = 1.25;

function promptBytes(kv, tokens) {
  return kv.whole_bytes * tokens + kv.window_bytes * Math.min(tokens, kv.window_tokens);
}

function computeS(prefill, tokens, cached = 0) {
  if (tokens <= cached) return 0;
  const pairs = tokens * tokens - cached * cached;
  const linear = prefill.c_s_per_token * (tokens - cached);
  return prefill.a_s + linear + prefill.d_s_per_token2 * pairs;
}

function loadS(store, sizeBytes) {
  return sizeBytes > 0 ? store.fixed_s + sizeBytes / store.bytes_s : 0;
}

function keptTokens(one, tokens) {
  return Math.floor((tokens - 1) / one.chunk_tokens) * one.chunk_tokens;
}

function loadedS(one, tokens, cached) {
  return loadS(one.store, promptBytes(one.kv, cached)) + computeS(one.prefill, tokens, cached);
}

function pays(one, tokens, cached) {
  return cached > 0 && loadedS(one, tokens, cached) < computeS(one.prefill, tokens);
}

function savedS(one, tokens, cached) {
  if (!pays(one, tokens, cached)) return 0;
  return computeS(one.prefill, tokens) - computeS(one.prefill, tokens, cached);
}

function breakEvenBytesS(one, tokens) {
  const cached = keptTokens(one, tokens);
  if (!cached) return Infinity;
  const saved = computeS(one.prefill, tokens) - computeS(one.prefill, tokens, cached);
  const left = saved - one.store.fixed_s;
  return left > 0 ? promptBytes(one.kv, cached) / left : Infinity;
}

function crossoverTokens(one) {
  const wonS = (n) =>
    one.prefill.c_s_per_token * n + one.prefill.d_s_per_token2 * n * n -
    one.store.fixed_s - promptBytes(one.kv, n) / one.store.bytes_s;
  if (wonS(1) >= 0) return 0;
  let low = 1;
  let high = 2;
  while (wonS(high) < 0) {
    low = high;
    high *= 2;
    if (high > TOKENS_MAX) return Infinity;
  }
  for (let i = 0; i < 80; i++) {
    const middle = (low + high) / 2;
    if (wonS(middle) < 0) low = middle;
    else high = middle;
  }
  return high;
}

function account(one, day, prices) {
  const kept = keptTokens(one, day.prompt_tokens);
  const hits = day.requests * day.hit_rate * (pays(one, day.prompt_tokens, kept) ? 1 : 0);
  const before = day.requests * computeS(one.prefill, day.prompt_tokens);
  const saved = hits * savedS(one, day.prompt_tokens, kept);
  const size = promptBytes(one.kv, kept);
  const gpuMoney = ((saved * one.prefill.gpus) / 3600) * prices.gpu_hour;
  const ramBytes = day.stored_bytes * BILLED;
  const ramMonth = (ramBytes / 1e9) * prices.ram_gb_month;
  return {
    gpu_s_before: before * one.prefill.gpus,
    gpu_s_after: (before - saved) * one.prefill.gpus,
    gpu_money_saved: gpuMoney,
    ram_bytes: ramBytes,
    ram_money: ramMonth / MONTH_DAYS,
    saved_money: gpuMoney - ramMonth / MONTH_DAYS,
    payback_days: gpuMoney > 0 ? ramMonth / gpuMoney : Infinity,
    read_bytes_s: (hits * size) / DAY_S,
    written_bytes_s: (day.requests * (1 - day.hit_rate) * size) / DAY_S,
  };
}

// Everything that the page shows of one question: fields of `Answer`.
function answer(question) {
  const { case: one, day, prices } = question;
  const tokens = day.prompt_tokens;
  const kept = keptTokens(one, tokens);
  return {
    bytes_per_token: one.kv.whole_bytes + one.kv.window_bytes,
    at: {
      tokens,
      kv_bytes: promptBytes(one.kv, tokens),
      kept_tokens: kept,
      compute_s: computeS(one.prefill, tokens),
      load_s: loadS(one.store, promptBytes(one.kv, kept)),
      miss_s: one.store.miss_s + computeS(one.prefill, tokens),
      hit_s: loadedS(one, tokens, kept),
      break_even_bytes_s: breakEvenBytesS(one, tokens),
    },
    crossover_tokens: crossoverTokens(one),
    bill: account(one, day, prices),
  };
}
