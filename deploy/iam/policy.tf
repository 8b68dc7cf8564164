# The documents are the JSON files in policies/ and trust/; nothing here adds a right to them.
# No `condition ? statements : []`: Terraform would want all statements to be of one type.
locals {
  own_bucket = { data_bucket_arn = var.data_bucket_arn }

  own      = jsondecode(templatefile("${path.module}/policies/own.json", local.own_bucket)).Statement
  versions = jsondecode(templatefile("${path.module}/policies/versions.json", local.own_bucket)).Statement

  keys = flatten([
    for n, arn in var.kms_key_arns : jsondecode(templatefile("${path.module}/policies/key.json", {
      n                  = n
      kms_key_arn        = arn
      data_bucket_region = var.data_bucket_region
    })).Statement
  ])

  siblings = flatten([
    for n, arn in var.sibling_staging_arns : jsondecode(templatefile("${path.module}/policies/sibling.json", {
      n                   = n
      sibling_staging_arn = arn
      sibling_bucket_arn  = trimsuffix(arn, "/moves/*")
    })).Statement
  ])

  policy = jsonencode({
    Version = "2012-10-17"
    Statement = concat(
      local.own,
      [for statement in local.versions : statement if var.versioned],
      local.keys,
      local.siblings,
    )
  })

  trust = templatefile("${path.module}/trust/${var.role}.json", {
    region           = var.region
    trust_anchor_arn = var.trust_anchor_arn
  })
}
