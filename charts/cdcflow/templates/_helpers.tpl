{{/* The name of the release's objects. Pods and revisions add a suffix, and 63 characters are allowed. */}}
{{- define "cdcflow.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{/* Labels that select the pods of a component: (list $ "daemon"). */}}
{{- define "cdcflow.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: cdcflow
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "cdcflow.labels" -}}
{{- $root := index . 0 -}}
{{ include "cdcflow.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{/* An image: (list $ .Values.image). */}}
{{- define "cdcflow.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "cdcflow.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "cdcflow.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end }}

{{/* The port of service.listen. */}}
{{- define "cdcflow.port" -}}
{{- $settings := fromYaml .Values.settings -}}
{{ dig "service" "listen" "" $settings | splitList ":" | last }}
{{- end }}

{{- define "cdcflow.scheme" -}}
{{- $settings := fromYaml .Values.settings -}}
{{- if dig "service" "tls" "" $settings }}HTTPS{{ else }}HTTP{{ end -}}
{{- end }}

{{/* Whether the pods of the daemon mount one volume, which this chart creates or which exists. */}}
{{- define "cdcflow.claim" -}}
{{- if .Values.storage.existingClaim -}}
{{ .Values.storage.existingClaim }}
{{- else if eq .Values.storage.accessMode "ReadWriteMany" -}}
{{ include "cdcflow.name" . }}-log
{{- end -}}
{{- end }}

{{- define "cdcflow.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# A volume with many segments is not searched at each start.
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cdcflow.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* What all pods of the release have in their spec. */}}
{{- define "cdcflow.pod" -}}
serviceAccountName: {{ include "cdcflow.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "cdcflow.podSecurity" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The same for all containers that read settings: (list $ "cdcflow.yaml"). */}}
{{- define "cdcflow.mounts" -}}
{{- $root := index . 0 -}}
- {name: settings, mountPath: /etc/cdcflow, readOnly: true}
- {name: temporary, mountPath: /tmp}
{{- range $root.Values.secrets }}
- {name: {{ printf "secret-%s" . | quote }}, mountPath: {{ printf "/secrets/%s" . | quote }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "cdcflow.volumes" -}}
{{- $root := index . 0 -}}
- name: settings
  configMap:
    name: {{ include "cdcflow.name" $root }}
    items:
      - {key: {{ index . 1 }}, path: cdcflow.yaml}
- name: temporary
  emptyDir: {sizeLimit: {{ $root.Values.temporary.size }}}
{{- range $root.Values.secrets }}
- name: {{ printf "secret-%s" . | quote }}
  secret:
    secretName: {{ . | quote }}
    # The daemon's group reads them; a file that every user may read is refused.
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "cdcflow.guard" -}}
name: guard
image: {{ include "cdcflow.image" (list . .Values.image) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - guard
  - --json
  - --config=/etc/cdcflow/cdcflow.yaml
  {{- with .Values.guard.slot }}
  - --slot={{ . }}
  {{- end }}
{{- with .Values.env }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "cdcflow.security" . | nindent 2 }}
resources:
  {{- toYaml .Values.guard.resources | nindent 2 }}
volumeMounts:
  {{- include "cdcflow.mounts" (list . "cdcflow.yaml") | nindent 2 }}
{{- end }}
