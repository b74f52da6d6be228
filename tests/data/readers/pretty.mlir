// Every pretty spelling of StableHLO's text.
#alias = loc("model.py":7:3)
module @pretty attributes {mhlo.num_partitions = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(%x: tensor<2x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, %y: tensor<2x3xf32>, %i: tensor<i32>) -> (tensor<2x3xf32> {jax.result_info = "out"}, tensor<f32>) {
    %0 = stablehlo.add %x, %y : tensor<2x3xf32> loc("layer/add"(#alias))
    %1 = stablehlo.compare LT, %0, %y, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1> loc(#late)
    %2 = stablehlo.select %1, %0, %y : tensor<2x3xi1>, tensor<2x3xf32>
    %3 = stablehlo.transpose %2, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
    %4 = stablehlo.dot_general %2, %3, contracting_dims = [1] x [0], precision = [HIGHEST, DEFAULT] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    %5 = stablehlo.slice %2 [0:2, 0:3:2] : (tensor<2x3xf32>) -> tensor<2x2xf32>
    %6 = stablehlo.concatenate %4, %5, dim = 1 : (tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<2x4xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %7 = stablehlo.pad %6, %cst, low = [0, 1], high = [1, 0], interior = [0, 0] : (tensor<2x4xf32>, tensor<f32>) -> tensor<3x5xf32>
    %8 = stablehlo.iota dim = 0 : tensor<4xi32>
    %9 = stablehlo.reverse %8, dims = [0] : tensor<4xi32>
    %10 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%2 init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    %12:2 = stablehlo.reduce(%2 init: %zero), (%2 init: %cst) across dimensions = [1] : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<f32>, tensor<f32>) -> (tensor<2xf32>, tensor<2xf32>)
     reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<f32>, %d: tensor<f32>)  {
      %s = stablehlo.add %a, %b : tensor<f32>
      %m = stablehlo.maximum %c, %d : tensor<f32>
      stablehlo.return %s, %m : tensor<f32>, tensor<f32>
    }
    %13:2 = stablehlo.while(%k = %i, %v = %11) : tensor<i32>, tensor<f32>
     cond {
      %ten = stablehlo.constant dense<10> : tensor<i32>
      %go = stablehlo.compare  LT, %k, %ten,  SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %k, %one : tensor<i32>
      %grown = stablehlo.multiply %v, %v : tensor<f32>
      stablehlo.return %next, %grown : tensor<i32>, tensor<f32>
    }
    %14 = "stablehlo.case"(%13#0) ({
      stablehlo.return %11 : tensor<f32>
    }, {
      stablehlo.return %13#1 : tensor<f32>
    }) : (tensor<i32>) -> tensor<f32>
    %15:2 = "stablehlo.sort"(%8, %9) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%p: tensor<i32>, %q: tensor<i32>, %r: tensor<i32>, %t: tensor<i32>):
      %less = stablehlo.compare LT, %p, %q : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %less : tensor<i1>
    }) : (tensor<4xi32>, tensor<4xi32>) -> (tensor<4xi32>, tensor<4xi32>)
    %16 = stablehlo.dynamic_slice %8, %i, sizes = [2] : (tensor<4xi32>, tensor<i32>) -> tensor<2xi32>
    %17 = stablehlo.clamp %zero, %2, %11 : (tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
    %18 = stablehlo.reduce_precision %2, format = e5m10 : tensor<2x3xf32>
    %19 = stablehlo.convert %8 : (tensor<4xi32>) -> tensor<4xf32>
    %20 = stablehlo.tuple %8, %19 : tuple<tensor<4xi32>, tensor<4xf32>>
    %21 = stablehlo.get_tuple_element %20[1] : (tuple<tensor<4xi32>, tensor<4xf32>>) -> tensor<4xf32>
    %22 = stablehlo.custom_call @Sharding(%2) {mhlo.sharding = "{replicated}"} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %23 = stablehlo.composite "my.square" %2 {composite_attributes = {n = 2 : i32}, decomposition = @square, version = 1 : i32} : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %24:2 = stablehlo.optimization_barrier %2, %8 : tensor<2x3xf32>, tensor<4xi32>
    %25 = sdy.sharding_constraint %2 <@mesh, [{"x"}, {"y"}]> : tensor<2x3xf32>
    %26 = call @square(%25) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %image = stablehlo.reshape %2 : (tensor<2x3xf32>) -> tensor<1x2x3x1xf32>
    %kernel = stablehlo.constant dense<[[[[1.0]], [[-2.5]]]]> : tensor<1x2x1x1xf32>
    %27 = stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[0, 0], [0, 1]], rhs_dilate = [1, 1]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64} : (tensor<1x2x3x1xf32>, tensor<1x2x1x1xf32>) -> tensor<1x2x3x1xf32>
    %start = stablehlo.constant dense<[[0], [1]]> : tensor<2x1xi32>
    %28 = "stablehlo.gather"(%2, %start) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, 3>}> : (tensor<2x3xf32>, tensor<2x1xi32>) -> tensor<2x3xf32>
    %29 = "stablehlo.scatter"(%2, %start, %28) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = true}> ({
    ^bb0(%old: tensor<f32>, %new: tensor<f32>):
      stablehlo.return %new : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<2x1xi32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %30 = "stablehlo.reduce_window"(%2, %zero) <{padding = dense<[[1, 0], [0, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 2, 1>}> ({
    ^bb0(%u: tensor<f32>, %w: tensor<f32>):
      %sum = stablehlo.add %u, %w : tensor<f32>
      stablehlo.return %sum : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
    %31 = stablehlo.exponential %30 {result_accuracy = #stablehlo.result_accuracy<ulps = 10, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<2x3xf32>
    %complex = stablehlo.constant dense<[(1.0, -2.0), (0.0, 3.5)]> : tensor<2xcomplex<f32>>
    %32 = stablehlo.fft %complex, type = FFT, length = [2] : (tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>>
    %seed = stablehlo.constant dense<[1, 18446744073709551615]> : tensor<2xui64>
    %33, %34 = stablehlo.rng_bit_generator %seed, algorithm = THREE_FRY : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)
    return %31, %14 : tensor<2x3xf32>, tensor<f32>
  }
  func.func private @square(%v: tensor<2x3xf32>) -> tensor<2x3xf32> {
    %0 = stablehlo.multiply %v, %v : tensor<2x3xf32>
    return %0 : tensor<2x3xf32>
  }
}
#late = loc("other.py":12:1)
