package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/internal/kernel/probe"
)

// Choice is a mode, and why it is the one.
type Choice struct{ Mode, Reason string }

// Configured is the choice of who named a mode.
func Configured(mode string) Choice { return Choice{mode, "the configuration names it"} }

// Choose returns the best mode that this kernel and this process can do, found
// out by trying. If there is none it is the first, whose errors say why.
func Choose(ctx context.Context, netns int) Choice {
	return choose(kinds(), func(k kind) error {
		_, err := k.probe(ctx, probe.Options{NetNS: netns})
		return err
	})
}

func choose(kinds []kind, try func(kind) error) Choice {
	var passed []string
	for _, k := range kinds {
		err := try(k)
		if err != nil {
			passed = append(passed, fmt.Sprintf("not %s: %s", k.mode, strings.ReplaceAll(err.Error(), "\n", "; ")))
			continue
		}
		if len(passed) == 0 {
			return Choice{k.mode, "the default, and this kernel can do it"}
		}
		return Choice{k.mode, "the best this kernel can do; " + strings.Join(passed, "; ")}
	}
	return Choice{kinds[0].mode, "the default, but nothing works here; " + strings.Join(passed, "; ")}
}
