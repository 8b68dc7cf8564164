resource "aws_iam_role" "box" {
  name               = "leasehold-${var.role}-${var.region}"
  description        = "Boxes of Leasehold in the region ${var.region}"
  assume_role_policy = local.trust
}

resource "aws_iam_role_policy" "box" {
  name   = "leasehold"
  role   = aws_iam_role.box.id
  policy = local.policy
}

# An EC2 instance takes a role through a profile.
resource "aws_iam_instance_profile" "box" {
  count = var.role == "region-host" ? 1 : 0
  name  = aws_iam_role.box.name
  role  = aws_iam_role.box.name
}
