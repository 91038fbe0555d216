// Four sums at once over those that share a unit of work: a quarter of the barriers.
var<workgroup> shared_fours: array<vec4<f32>, LANES * ACROSS>;

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
