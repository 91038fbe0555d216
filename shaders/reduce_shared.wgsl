// LANES invocations compute one result: each folds every LANES-th of LENGTH elements that lie INNER apart, each read
// once; the partial folds meet in workgroup memory. A group computes ACROSS results.
var<workgroup> folds: array<f32, LANES * ACROSS>;

@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = lane / PART_STRIDE % LANES;
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane / RESULT_STRIDE % ACROSS;
    let result = min(wanted, RESULTS - 1u);
    let first = result / INNER * LENGTH * INNER + result % INNER;
    var acc = start(first);
    var l = part;
    for (; l + 3u * LANES < LENGTH; l += 4u * LANES) {
        let i = first + l * INNER;
        let pair = combine(element(i), element(i + LANES * INNER));
        acc = combine(acc, combine(pair, combine(element(i + 2u * LANES * INNER), element(i + 3u * LANES * INNER))));
    }
    for (; l < LENGTH; l += LANES) {
        acc = combine(acc, element(first + l * INNER));
    }
    folds[lane] = acc;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (part < half) {
            folds[lane] = combine(folds[lane], folds[lane + half * PART_STRIDE]);
        }
        workgroupBarrier();
    }
    if (part == 0u && wanted < RESULTS) {
        store(result, finish(folds[lane]));
    }
}
