// What invocations exchange: a value or four of each. Everyone who shares a unit of work gets the result.
var<workgroup> shared_values: array<f32, LANES * ACROSS>;

var<workgroup> shared_fours: array<vec4<f32>, LANES * ACROSS>;

var<private> own_lane: u32;

const ROOT = select(LANES, 16u, LANES > 32u);

fn max_of_unit(value: f32) -> f32 {
    let first = own_lane / LANES * LANES;
    shared_values[own_lane] = value;
    workgroupBarrier();
    if (LANES > ROOT) {
        if (own_lane - first < ROOT) {
            var some = value;
            for (var k = 1u; k < LANES / ROOT; k++) {
                some = max_nan(some, shared_values[own_lane + k * ROOT]);
            }
            shared_values[own_lane] = some;
        }
        workgroupBarrier();
    }
    var found = shared_values[first];
    for (var k = 1u; k < ROOT; k++) {
        found = max_nan(found, shared_values[first + k]);
    }
    workgroupBarrier();
    return found;
}

fn sum_of_unit(value: f32) -> f32 {
    let first = own_lane / LANES * LANES;
    shared_values[own_lane] = value;
    workgroupBarrier();
    if (LANES > ROOT) {
        if (own_lane - first < ROOT) {
            var some = value;
            for (var k = 1u; k < LANES / ROOT; k++) {
                some += shared_values[own_lane + k * ROOT];
            }
            shared_values[own_lane] = some;
        }
        workgroupBarrier();
    }
    var found = shared_values[first];
    for (var k = 1u; k < ROOT; k++) {
        found += shared_values[first + k];
    }
    workgroupBarrier();
    return found;
}

// Four sums at once: a quarter of the barriers.
fn sums_of_unit(values: vec4<f32>) -> vec4<f32> {
    let first = own_lane / LANES * LANES;
    shared_fours[own_lane] = values;
    workgroupBarrier();
    if (LANES > ROOT) {
        if (own_lane - first < ROOT) {
            var some = values;
            for (var k = 1u; k < LANES / ROOT; k++) {
                some += shared_fours[own_lane + k * ROOT];
            }
            shared_fours[own_lane] = some;
        }
        workgroupBarrier();
    }
    var found = shared_fours[first];
    for (var k = 1u; k < ROOT; k++) {
        found += shared_fours[first + k];
    }
    workgroupBarrier();
    return found;
}

// The sum over the invocations of the unit of work whose part is smaller.
fn sum_of_earlier(value: f32) -> f32 {
    let part = own_lane % LANES;
    shared_values[own_lane] = value;
    workgroupBarrier();
    for (var distance = 1u; distance < LANES; distance *= 2u) {
        var total = shared_values[own_lane];
        if (part >= distance) {
            total += shared_values[own_lane - distance];
        }
        workgroupBarrier();
        shared_values[own_lane] = total;
        workgroupBarrier();
    }
    var found = 0.0;
    if (part > 0u) {
        found = shared_values[own_lane - 1u];
    }
    workgroupBarrier();
    return found;
}

// LANES invocations share a unit of work, a group does ACROSS units.
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
