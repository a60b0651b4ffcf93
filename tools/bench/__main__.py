from tools.bench.command import main

main()
