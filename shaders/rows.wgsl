// Sums and maxima over the LANES invocations that share a row; every one of them gets the result.
var<workgroup> shared_row: array<f32, LANES * ACROSS>;

fn max_of_row(lane: u32, value: f32) -> f32 {
    shared_row[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane % LANES < half) {
            shared_row[lane] = max_nan(shared_row[lane], shared_row[lane + half]);
        }
        workgroupBarrier();
    }
    let found = shared_row[lane / LANES * LANES];
    workgroupBarrier();
    return found;
}

fn sum_of_row(lane: u32, value: f32) -> f32 {
    shared_row[lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (lane % LANES < half) {
            shared_row[lane] += shared_row[lane + half];
        }
        workgroupBarrier();
    }
    let found = shared_row[lane / LANES * LANES];
    workgroupBarrier();
    return found;
}
