// The sum of one value is the value.
fn max_of_unit(value: f32) -> f32 {
    return value;
}

fn sum_of_unit(value: f32) -> f32 {
    return value;
}

fn sums_of_unit(values: vec4<f32>) -> vec4<f32> {
    return values;
}

fn sum_of_earlier(value: f32) -> f32 {
    return 0.0;
}

// One invocation has a unit of work of its own: no sums or maxima are exchanged.
@compute @workgroup_size(LANES * ACROSS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let wanted = ((group.z * groups.y + group.y) * groups.x + group.x) * ACROSS + lane;
    if (wanted < UNITS) {
        unit(wanted, 0u, true);
    }
}
