package app

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/testing/hnstest"
	"github.com/sluice-proxy/sluice/internal/windows/hns"
)

// The command lines of the guide for Windows, of the service and of the clean-up, have flags that exist with values
// that are accepted.
func TestTheGuideForWindows(t *testing.T) {
	text, err := os.ReadFile("../../docs/windows.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	command := regexp.MustCompile("(?m)^(?:.*(sc\\.exe create).*)?.*sluice\\.exe (--[^\"`\n]*)")
	for _, m := range command.FindAllStringSubmatch(string(text), -1) {
		o := windows(t, hnstest.New(hns.Network{Name: "cbr0", Type: hns.L2Bridge}), strings.Fields(m[2])...)
		c := o.Config
		got = append(got, fmt.Sprintf("%s: mode %s, network %s, service %v, clean-up %v",
			m[1], c.Mode, c.HNS.Network, c.WindowsService, c.Cleanup))
	}
	want := []string{
		"sc.exe create: mode kernelspace, network cbr0, service true, clean-up false",
		": mode kernelspace, network cbr0, service false, clean-up true",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
