"""The commands of `kvferry` that measure; `kvferry.cli.main` names them."""
