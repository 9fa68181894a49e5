from halo_weave.cli import main

main()
