// Command calibrate prints how much slower than a fast idle machine this one is, as TEST_SLOWDOWN=1.2, and after a
// space the ratio of each kind of work. With -reference it prints the shortest of many measured times, for the
// constants of package machine.
package main

import (
	"flag"
	"fmt"

	"github.com/sluice-proxy/sluice/test/machine"
)

func main() {
	reference := flag.Bool("reference", false, "print the shortest times of 30 calibrations, on an idle machine")
	flag.Parse()
	figures := machine.Measure()
	if !*reference {
		fmt.Println(figures)
		return
	}
	for range 29 {
		figures = machine.Fastest(figures, machine.Measure())
	}
	for _, f := range figures {
		fmt.Printf("%-18s %v for a thousand operations\n", f.Name, f.Time)
	}
}
