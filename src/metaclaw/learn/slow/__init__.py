"""The slow loop: query turns become groups, groups become steps, steps become a version that is proven and then serves."""
