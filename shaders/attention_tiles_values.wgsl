// Products of the weights of 64 rows and 64 columns with the columns' values, or the `second` ones: 64 of their elements
// from `chunk` on.
fn add_values(lane: u32, before: Sums, weights: Sums, row: u32, column: u32, other: u32, chunk: u32, second: bool) -> Sums {
    var sums = before;
    let last = min(row + 63u, OWN_ROWS - 1u);
    let whole = column >= first_seen(last) && column + 64u <= end_seen(row);
    let low = transpose(weights.low);
    let high = transpose(weights.high);
    let step = lane / 16u;
    let into = tile_of(part) + 512u + step * 16u;
    let quad = lane % 16u;
    for (var half = 0u; half < 2u; half++) {
        let n = column + half * 32u + lane / 16u;
        let c = chunk + lane % 16u * 4u;
        var v0 = vec4<f32>();
        var v1 = vec4<f32>();
        var v2 = vec4<f32>();
        var v3 = vec4<f32>();
        if (busy) {
            v0 = value_or_zero(n, other, c, second);
            v1 = value_or_zero(n + 8u, other, c, second);
            v2 = value_or_zero(n + 16u, other, c, second);
            v3 = value_or_zero(n + 24u, other, c, second);
        }
        workgroupBarrier();
        tile[into + (quad ^ turned(step))] = v0;
        tile[into + 128u + (quad ^ turned(step + 8u))] = v1;
        tile[into + 256u + (quad ^ turned(step + 16u))] = v2;
        tile[into + 384u + (quad ^ turned(step + 24u))] = v3;
        if (lane % 16u / 8u == half) {
            let at = tile_of(part) + lane % 8u * 64u + ((lane / 16u) ^ turned(lane % 8u * 4u));
            tile[at] = low[0];
            tile[at + 8u] = high[0];
            tile[at + 16u] = low[1];
            tile[at + 24u] = high[1];
            tile[at + 32u] = low[2];
            tile[at + 40u] = high[2];
            tile[at + 48u] = low[3];
            tile[at + 56u] = high[3];
        }
        workgroupBarrier();
        if (busy && whole) {
            sums = multiply(lane, sums, 32u);
        } else if (busy) {
            sums = multiply_seen(lane, sums, row, column + half * 32u);
        }
    }
    return sums;
}

// As `multiply`, of 32 columns that not all rows see: what a row does not see is left out, not multiplied by 0, for
// it may be a NaN.
fn multiply_seen(lane: u32, before: Sums, row: u32, column: u32) -> Sums {
    var low = before.low;
    var high = before.high;
    let m = row + lane / 16u * 4u;
    let rows = min(m + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(OWN_ROWS - 1u));
    let more = min(m + vec4<u32>(32u, 33u, 34u, 35u), vec4<u32>(OWN_ROWS - 1u));
    let first_low = vec4<u32>(first_seen(rows.x), first_seen(rows.y), first_seen(rows.z), first_seen(rows.w));
    let end_low = vec4<u32>(end_seen(rows.x), end_seen(rows.y), end_seen(rows.z), end_seen(rows.w));
    let first_high = vec4<u32>(first_seen(more.x), first_seen(more.y), first_seen(more.z), first_seen(more.w));
    let end_high = vec4<u32>(end_seen(more.x), end_seen(more.y), end_seen(more.z), end_seen(more.w));
    for (var step = 0u; step < 32u; step++) {
        let n = vec4<u32>(column + step);
        let by = turned(step);
        let left = tile_of(part) + step * 16u + ((lane / 16u) ^ by);
        let b = tile[tile_of(part) + 512u + step * 16u + ((lane % 16u) ^ by)];
        low += outer_seen(tile[left], b, (n >= first_low) & (n < end_low));
        high += outer_seen(tile[left + 8u], b, (n >= first_high) & (n < end_high));
    }
    return Sums(low, high);
}

fn outer_seen(a: vec4<f32>, b: vec4<f32>, sees: vec4<bool>) -> mat4x4<f32> {
    let none = vec4<f32>();
    return mat4x4<f32>(
        select(none, a.x * b, sees.x), select(none, a.y * b, sees.y),
        select(none, a.z * b, sees.z), select(none, a.w * b, sees.w),
    );
}

fn write(lane: u32, row: u32, head: u32, chunk: u32, sums: Sums, second: bool) {
    let m = row + lane / 16u * 4u;
    let c = chunk + lane % 16u * 4u;
    if (PARTS > 1u) {
        write_joined(lane, m, head, c, sums.low, second);
        write_joined(lane, m + 32u, head, c, sums.high, second);
        return;
    }
    write_row(m, head, c, sums.low[0], second);
    write_row(m + 1u, head, c, sums.low[1], second);
    write_row(m + 2u, head, c, sums.low[2], second);
    write_row(m + 3u, head, c, sums.low[3], second);
    write_row(m + 32u, head, c, sums.high[0], second);
    write_row(m + 33u, head, c, sums.high[1], second);
    write_row(m + 34u, head, c, sums.high[2], second);
    write_row(m + 35u, head, c, sums.high[3], second);
}

// Four rows, added up over all parts; each part writes some of them.
fn write_joined(lane: u32, m: u32, head: u32, c: u32, sums: mat4x4<f32>, second: bool) {
    let own = tile_of(part) + lane;
    workgroupBarrier();
    tile[own] = sums[0];
    tile[own + 128u] = sums[1];
    tile[own + 256u] = sums[2];
    tile[own + 384u] = sums[3];
    workgroupBarrier();
    for (var r = part; r < 4u; r += PARTS) {
        var sum = vec4<f32>();
        for (var number = 0u; number < PARTS; number++) {
            sum += tile[tile_of(number) + r * 128u + lane];
        }
        write_row(m + r, head, c, sum, second);
    }
}
