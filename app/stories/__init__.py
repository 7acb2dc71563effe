"""Stories: small scripts in assets/stories that run the same requests twice and leave both runs on one plot."""
