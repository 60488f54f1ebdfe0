// Prints a compose file or a Dockerfile as Docker itself understands it: as JSON, checked against its specification,
// with short forms and variables written out. It is the libraries that Docker Compose and BuildKit are made of, without
// an engine.
//
//	compose docker/compose.yaml
//	compose docker/Dockerfile
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	text, err := understood(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(text))
}

func understood(path string) ([]byte, error) {
	if strings.HasSuffix(path, ".yaml") {
		return project(path)
	}
	return stages(path)
}

func project(path string) ([]byte, error) {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithOsEnv, cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	found, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return found.MarshalJSON()
}

// A stage's instructions, each with its name and what it says.
type stage struct {
	Name         string        `json:"name"`
	Base         string        `json:"base"`
	Instructions []instruction `json:"instructions"`
}

type instruction struct {
	Name  string `json:"name"`
	Words any    `json:"words"`
}

func stages(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		return nil, err
	}
	found, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, err
	}
	made := []stage{}
	for _, one := range found {
		listed := []instruction{}
		for _, command := range one.Commands {
			listed = append(listed, instruction{command.Name(), command})
		}
		made = append(made, stage{one.Name, one.BaseName, listed})
	}
	return json.Marshal(made)
}
