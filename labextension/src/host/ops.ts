// The ops that a `%%graph` cell knows, by family: generated from the registry by ops_ts.py.

export const FAMILIES: Record<string, string> = {
  contraction:
    "batch_matmul batch_matmul_at batch_matmul_bt biased_attention block_matmul block_matmul_at block_matmul_bt " +
    "cached_attention cached_block_attention cached_softcap_attention causal_attention conv2d conv2d_dw " +
    "conv2d_grad_input conv2d_grad_weight conv2d_hw conv_transpose_2d cross_attention full_attention " +
    "fused_matmul_add fused_matmul_at_add fused_matmul_bt_add grouped_matmul grouped_matmul_at grouped_matmul_bt " +
    "matmul matmul_affine matmul_at matmul_bt multi_head_attn sliding_window_attention softcap_attention",
  elementwise:
    "abs add add_per_channel add_scalar arccos arccosh arcsin arcsinh arctan arctanh bias_add bias_mul " +
    "broadcast_add ceil clamp cos cosh div elu equal erf exp expm1 floor fmod geglu geglu_concat gelu gelu_erf " +
    "greater greater_equal isinf isnan less less_equal log log1p maximum minimum mod mul mul_per_channel neg " +
    "not_equal pack16 pow pow_scalar recip relu round round_to rsqrt scalar scale sigmoid sign silu sin sinh " +
    "softplus sqrt square sub swiglu swiglu_concat tan tanh to_bf16 to_f16 to_f32 to_u32 trunc where zeros",
  index:
    "add_along_axis argmax cache_write cache_write_prefix embedding gather prefix_last scatter_add " +
    "take_along_axis top_k_indices",
  leaf:
    "constant constant_u32 full input input_u32 parameter parameter_f16 parameter_q4 parameter_q8",
  loss:
    "bce_loss cross_entropy_loss l1_loss mse_loss",
  movement:
    "broadcast_inner broadcast_to concat crop_2d dilate_h dilate_w materialize pad permute pixel_shuffle_w " +
    "reshape shift_inner slice stop_gradient tile_inner transpose upsample_2x upsample_nearest",
  random:
    "bernoulli_mask dropout rand_normal rand_uniform",
  reduction:
    "avg_pool_2d cumsum exclusive_cumsum fused_rms_norm_matmul global_avg_pool group_norm group_norm_silu " +
    "layer_norm log_softmax max max_inner max_pool_2d mean mean_all mean_inner min normalize_inner_sum " +
    "pairwise_squared_distance pairwise_vector_rejection prod rms_norm rope rope_dynamic_offset rope_positions " +
    "rope_with_offset softmax sum sum_all sum_inner sum_rows",
};
