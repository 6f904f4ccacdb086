package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/bugreport"
	"github.com/sluice-proxy/sluice/internal/preflight"
)

func newBugreport(env Env) *cobra.Command {
	var file string
	var anonymize bool
	cmd := &cobra.Command{
		Use:     "bugreport",
		Short:   "Write an archive for a fault report: state, rules, Events, settings, kernel",
		Long:    about("bugreport"),
		Example: about("bugreport: examples"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now := time.Now().UTC().Truncate(time.Second)
			name := "sluice-bugreport-" + now.Format("20060102-150405")
			if file == "" {
				file = name + ".tar.gz"
			}
			if err := absent(file); err != nil {
				return err
			}
			r := bugreport.Archive{
				Folder: name, At: now, Files: bugreport.Collect(cmd.Context(), reportSources()), Clean: bugreport.Secrets(),
				About: fmt.Sprintf("Bug report of Sluice %s, %s\n", version(), now.Format(time.RFC3339)),
			}
			if err := cmd.Context().Err(); err != nil {
				return fmt.Errorf("collect files: %w", err)
			}
			if anonymize {
				host, _ := os.Hostname()
				r = r.Anonymous(host)
			}
			return writeReport(r, file, env)
		},
	}
	cmd.Flags().StringVarP(&file, "output", "o", "", "`file` to write, which must not exist, "+
		"or - for standard output (default sluice-bugreport-TIME.tar.gz)")
	cmd.Flags().BoolVar(&anonymize, "anonymize", false, "replace addresses and names by hashes")
	return cmd
}

// reportSources are the files. The first ones have what the daemon answers, a line for each answer.
func reportSources() []bugreport.Source {
	var all []bugreport.Source
	for _, name := range []string{
		"status", "settings", "events", "diff", "plan", "services", "backends", "nodeports", "addresses",
	} {
		all = append(all, bugreport.Source{
			Name: name + ".json", Cluster: true,
			Read: func(ctx context.Context) ([]byte, error) { return askWhole(ctx, "/"+name) },
		})
	}
	return append(all,
		bugreport.Source{
			Name: "rules.txt", Read: func(ctx context.Context) ([]byte, error) { return bugreport.Rules(ctx, 0) },
		},
		bugreport.Source{Name: "kernel.json", Read: func(ctx context.Context) ([]byte, error) {
			return json.MarshalIndent(preflight.ReadHost(ctx, 0), "", "  ")
		}},
	)
}

// askWhole returns an answer of the daemon, as far as a file may have it.
func askWhole(ctx context.Context, path string) (text []byte, err error) {
	for line, err := range admin.DialNearest().Ask(ctx, path, nil) {
		if err != nil {
			return nil, err
		}
		if text = append(append(text, line...), '\n'); len(text) > bugreport.MaxFile {
			break
		}
	}
	return text, nil
}

// absent returns an error unless a file can be made.
func absent(file string) error {
	if file == "-" {
		return nil
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists: remove it, or name another file with --output", file)
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	} else if !info.IsDir() {
		return fmt.Errorf("write %s: %s is not a folder", file, filepath.Dir(file))
	}
	return nil
}

// writeReport writes the archive. A file gets its name when it is complete.
func writeReport(r bugreport.Archive, file string, env Env) error {
	if file == "-" {
		return r.Write(env.Stdout)
	}
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		return err
	}
	partial, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // for this user only
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	defer func() { _ = os.Remove(partial.Name()) }() // after Rename there is none
	_, err = partial.Write(b.Bytes())
	if err = errors.Join(err, partial.Close(), absent(file)); err == nil {
		err = os.Rename(partial.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	fmt.Fprintf(env.Stdout, "%s\n", file)
	var missing []string
	for _, f := range r.Files {
		if f.Err != nil {
			missing = append(missing, f.Name)
		}
	}
	if len(missing) > 0 {
		fmt.Fprintf(env.Stderr, "Missing: %s. about.txt in the archive has the reasons.\n", strings.Join(missing, ", "))
	}
	return nil
}
