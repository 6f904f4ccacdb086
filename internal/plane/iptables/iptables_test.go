package iptables

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/plane/planetest"
)

// What is loaded is found again as it should be, in every shape, by the programs
// of both variants.
func TestWhatIsLoadedIsRight(t *testing.T) {
	for _, variant := range variants() {
		for name, opt := range planetest.Detectors() {
			t.Run(string(variant)+"/"+name, func(t *testing.T) {
				kernel, _ := realKernel(t, variant)
				change := planetest.Compile(planetest.EveryShape(), opt)
				load(t, kernel, change)
				settled(t, kernel, change.Table)
			})
		}
	}
}
