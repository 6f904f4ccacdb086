package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/internal/plane"
)

// Choice is a mode, and why it is the one.
type Choice struct{ Mode, Reason string }

// Configured is the choice of a mode that the configuration names.
func Configured(mode string) Choice { return Choice{mode, "the configuration names it"} }

// Choose returns the first mode that this kernel and this process can do, by trying.
// If there is none it is the first of all, whose error says why.
func Choose(ctx context.Context, kinds []plane.Kind, netns int) Choice {
	var passed []string
	for _, k := range kinds {
		_, err := k.Probe(ctx, netns)
		if err != nil {
			passed = append(passed, fmt.Sprintf("not %s: %s", k.Mode, strings.ReplaceAll(err.Error(), "\n", "; ")))
			continue
		}
		if len(passed) == 0 {
			return Choice{k.Mode, "the default, and this kernel can do it"}
		}
		return Choice{k.Mode, "the best this kernel can do; " + strings.Join(passed, "; ")}
	}
	return Choice{kinds[0].Mode, "the default, but nothing works here; " + strings.Join(passed, "; ")}
}
