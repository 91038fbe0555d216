// LANES invocations share a piece of work, a group does ACROSS pieces. Sums and maxima over those that share: every one of
// them gets the result.
var<workgroup> shared_values: array<f32, LANES * ACROSS>;
var<private> own_lane: u32;

fn max_of_unit(value: f32) -> f32 {
    shared_values[own_lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (own_lane % LANES < half) {
            shared_values[own_lane] = max_nan(shared_values[own_lane], shared_values[own_lane + half]);
        }
        workgroupBarrier();
    }
    let found = shared_values[own_lane / LANES * LANES];
    workgroupBarrier();
    return found;
}

fn sum_of_unit(value: f32) -> f32 {
    shared_values[own_lane] = value;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if (own_lane % LANES < half) {
            shared_values[own_lane] += shared_values[own_lane + half];
        }
        workgroupBarrier();
    }
    let found = shared_values[own_lane / LANES * LANES];
    workgroupBarrier();
    return found;
}

@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane / LANES;
    own_lane = lane;
    unit(min(wanted, UNITS - 1u), lane % LANES, wanted < UNITS);
}
