variable "role" {
  description = "region-host for a box that is an EC2 instance, region-remote-host for one that stands outside of AWS."
  type        = string

  validation {
    condition     = contains(["region-host", "region-remote-host"], var.role)
    error_message = "The role is region-host or region-remote-host."
  }
}

variable "region" {
  description = "The region's code, as in `leasehold region list`."
  type        = string
}

variable "data_bucket_arn" {
  description = "The region's own data bucket, e.g. arn:aws:s3:::eu-data."
  type        = string
}

variable "data_bucket_region" {
  description = "The region of that bucket, as AWS names it."
  type        = string
}

variable "sibling_staging_arns" {
  description = "Where this region's boxes may stage moves: of each region that instances move to, <bucket ARN>/moves/*. Without any, the role has no right outside of its own bucket."
  type        = list(string)
  default     = []

  validation {
    condition = alltrue([
      for arn in var.sibling_staging_arns :
      startswith(arn, "arn:") && endswith(arn, "/moves/*") && length(split("/", arn)) == 3 && length(split("*", arn)) == 2
    ])
    error_message = "Each is <bucket ARN>/moves/*: no other prefix and no other wildcard."
  }

  validation {
    condition     = length(distinct(var.sibling_staging_arns)) == length(var.sibling_staging_arns)
    error_message = "Each sibling is named once."
  }

  validation {
    condition     = !contains(var.sibling_staging_arns, "${var.data_bucket_arn}/moves/*")
    error_message = "The region's own bucket is no sibling."
  }
}

variable "versioned" {
  description = "Whether the data bucket keeps versions, or ever did: then a purge has to delete them, too."
  type        = bool
  default     = false
}

variable "kms_key_arns" {
  description = "The keys that encrypt the data bucket; none for encryption by S3's own keys."
  type        = list(string)
  default     = []
}

variable "trust_anchor_arn" {
  description = "The trust anchor of IAM Roles Anywhere whose certificates name the region as their unit (OU). Only for region-remote-host."
  type        = string
  default     = ""

  validation {
    condition     = (var.role == "region-remote-host") == (var.trust_anchor_arn != "")
    error_message = "A region-remote-host needs a trust anchor, a region-host has none."
  }
}
