// Four sums of an invocation that has a unit of work of its own.
fn sums_of_unit(values: vec4<f32>) -> vec4<f32> {
    return values;
}
