// The running softmax of 64 queries: of its 8 rows every invocation knows the largest score so far, and the sum of
// e^(score - largest) over its own columns.
var<private> highest_low: vec4<f32> = vec4<f32>(-3e38);
var<private> highest_high: vec4<f32> = vec4<f32>(-3e38);
var<private> total_low: vec4<f32>;
var<private> total_high: vec4<f32>;
var<private> shrink_low: vec4<f32>;
var<private> shrink_high: vec4<f32>;

fn masked4(scores: mat4x4<f32>, query: u32, key: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        masked(scores[0], query, key),
        masked(scores[1], query + 1u, key),
        masked(scores[2], query + 2u, key),
        masked(scores[3], query + 3u, key),
    );
}

fn powers4(scores: mat4x4<f32>, highest: vec4<f32>, query: u32, key: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        powers(scores[0], highest.x, query, key),
        powers(scores[1], highest.y, query + 1u, key),
        powers(scores[2], highest.z, query + 2u, key),
        powers(scores[3], highest.w, query + 3u, key),
    );
}

// One number of each row from every invocation: where the 16 that share a row put theirs.
fn share(lane: u32, low: vec4<f32>, high: vec4<f32>) {
    let at = tile_of(part) + lane / 16u * 16u + lane % 16u / 4u;
    let q = lane % 4u;
    workgroupBarrier();
    tile[at][q] = low.x;
    tile[at + 4u][q] = low.y;
    tile[at + 8u][q] = low.z;
    tile[at + 12u][q] = low.w;
    tile[at + 128u][q] = high.x;
    tile[at + 132u][q] = high.y;
    tile[at + 136u][q] = high.z;
    tile[at + 140u][q] = high.w;
    workgroupBarrier();
}

fn weigh(lane: u32, row: u32, head: u32, column: u32, kv: u32) -> Sums {
    let scores = score_tile(lane, row, head, column, kv);
    let query = row + lane / 16u * 4u;
    let key = column + lane % 16u * 4u;
    let low = masked4(scores.low, query, key);
    let high = masked4(scores.high, query + 32u, key);
    share(
        lane,
        vec4<f32>(largest(low[0]), largest(low[1]), largest(low[2]), largest(low[3])),
        vec4<f32>(largest(high[0]), largest(high[1]), largest(high[2]), largest(high[3])),
    );
    if (lane < 64u) {
        let four = tile_of(part) + lane * 4u;
        let found = vec4<f32>(
            largest(tile[four]),
            largest(tile[four + 1u]),
            largest(tile[four + 2u]),
            largest(tile[four + 3u]),
        );
        tile[tile_of(part) + 256u + lane / 4u][lane % 4u] = largest(found);
    }
    workgroupBarrier();
    let now_low = max4(highest_low, tile[tile_of(part) + 256u + lane / 16u]);
    let now_high = max4(highest_high, tile[tile_of(part) + 264u + lane / 16u]);
    shrink_low = exp(highest_low - now_low);
    shrink_high = exp(highest_high - now_high);
    highest_low = now_low;
    highest_high = now_high;
    let p_low = powers4(low, now_low, query, key);
    let p_high = powers4(high, now_high, query + 32u, key);
    let ones = vec4<f32>(1.0);
    total_low = total_low * shrink_low + ones * p_low;
    total_high = total_high * shrink_high + ones * p_high;
    return Sums(p_low, p_high);
}

fn max4(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(max_nan(a.x, b.x), max_nan(a.y, b.y), max_nan(a.z, b.z), max_nan(a.w, b.w));
}

fn sum16(first: u32) -> f32 {
    return dot(tile[first] + tile[first + 1u] + tile[first + 2u] + tile[first + 3u], vec4<f32>(1.0));
}

// Sums of whole rows.
fn add_up(lane: u32) {
    share(lane, total_low, total_high);
    let at = tile_of(part) + lane / 16u * 16u;
    total_low = vec4<f32>(sum16(at), sum16(at + 4u), sum16(at + 8u), sum16(at + 12u));
    total_high = vec4<f32>(sum16(at + 128u), sum16(at + 132u), sum16(at + 136u), sum16(at + 140u));
}

// The running softmax of all parts together. The sums of this part shrink by `shrink_low` and `shrink_high` for it; of
// a part that saw nothing they are 0.
fn join_parts(lane: u32) {
    let own_low = highest_low;
    let own_high = highest_high;
    let own = tile_of(part) + lane;
    workgroupBarrier();
    tile[own] = highest_low;
    tile[own + 128u] = highest_high;
    tile[own + 256u] = total_low;
    tile[own + 384u] = total_high;
    workgroupBarrier();
    for (var number = 0u; number < PARTS; number++) {
        highest_low = max4(highest_low, tile[tile_of(number) + lane]);
        highest_high = max4(highest_high, tile[tile_of(number) + lane + 128u]);
    }
    shrink_low = exp(own_low - highest_low);
    shrink_high = exp(own_high - highest_high);
    total_low = vec4<f32>();
    total_high = vec4<f32>();
    for (var number = 0u; number < PARTS; number++) {
        let at = tile_of(number) + lane;
        total_low += tile[at + 256u] * exp(tile[at] - highest_low);
        total_high += tile[at + 384u] * exp(tile[at + 128u] - highest_high);
    }
}

// The logarithms of the sums of 8 queries.
fn write_logarithms(first: u32, head: u32) {
    for (var r = 0u; r < 4u; r++) {
        let query = first + r;
        if (query < QUERIES) {
            store_logarithm(query * HEADS + head, lost(highest_low[r], highest_low[r] + log(total_low[r])));
        }
        if (query + 32u < QUERIES) {
            store_logarithm((query + 32u) * HEADS + head, lost(highest_high[r], highest_high[r] + log(total_high[r])));
        }
    }
}
