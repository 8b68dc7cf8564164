output "role_arn" {
  description = "The role of the region's boxes."
  value       = aws_iam_role.box.arn
}

output "policy" {
  description = "Its policy, as JSON."
  value       = local.policy
}
