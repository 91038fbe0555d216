// LANES invocations compute one result: each folds every LANES-th vec4 of LENGTH neighbours, with EACH loads in flight;
// the partial folds meet in workgroup memory. A group computes ACROSS results.
var<workgroup> folds: array<f32, LANES * ACROSS>;

const ROOT = select(LANES, 16u, LANES > 32u);

@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let part = lane % LANES;
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane / LANES;
    let first = min(wanted, RESULTS - 1u) * LENGTH;
    var fours = start4(first);
    var l = part * 4u;
    for (var turn = 0u; turn < TURNS; turn++) {
        for (var e = 0u; e < EACH; e++) {
            let x_e = element4(first + l + e * LANES * 4u);
        }
        for (var e = 0u; e < EACH; e++) {
            fours = combine4(fours, x_e);
        }
        l += EACH * LANES * 4u;
    }
    for (; l < LENGTH; l += LANES * 4u) {
        fours = combine4(fours, element4(first + l));
    }
    folds[lane] = combine(combine(fours.x, fours.y), combine(fours.z, fours.w));
    workgroupBarrier();
    if (LANES > ROOT && part < ROOT) {
        var some = folds[lane];
        for (var other = lane + ROOT; other < lane - part + LANES; other += ROOT) {
            some = combine(some, folds[other]);
        }
        folds[lane] = some;
    }
    workgroupBarrier();
    if (part == 0u && wanted < RESULTS) {
        var all = folds[lane];
        for (var other = 1u; other < ROOT; other++) {
            all = combine(all, folds[lane + other]);
        }
        store(wanted, finish(all));
    }
}
