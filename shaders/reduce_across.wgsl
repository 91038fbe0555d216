// LANES invocations compute four neighbouring results: each folds every LANES-th of LENGTH elements that lie INNER apart,
// with EACH loads in flight; the partial folds meet in workgroup memory. A group computes ACROSS times four results.
var<workgroup> folds: array<vec4<f32>, LANES * ACROSS>;

@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = lane / ACROSS;
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane % ACROSS;
    let result = min(wanted, RESULTS - 1u) * 4u;
    let first = result / INNER * LENGTH * INNER + result % INNER;
    var fours = start4(first);
    var l = part;
    for (var turn = 0u; turn < TURNS; turn++) {
        for (var e = 0u; e < EACH; e++) {
            let x_e = element4(first + (l + e * LANES) * INNER);
        }
        for (var e = 0u; e < EACH; e++) {
            fours = combine4(fours, x_e);
        }
        l += EACH * LANES;
    }
    for (; l < LENGTH; l += LANES) {
        fours = combine4(fours, element4(first + l * INNER));
    }
    folds[lane] = fours;
    workgroupBarrier();
    if (part == 0u && wanted < RESULTS) {
        for (var other = lane + ACROSS; other < LANES * ACROSS; other += ACROSS) {
            fours = combine4(fours, folds[other]);
        }
        store4(result, finish4(fours));
    }
}
