"""From the paper's image folders to model outputs: what needs torch and torchvision."""
