{{- define "weightlease.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that every suffix still fits into a name. */}}
{{- define "weightlease.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "weightlease.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "weightlease.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Call with (dict "root" $ "component" "agent"); component may be empty. */}}
{{- define "weightlease.selectorLabels" -}}
app.kubernetes.io/name: {{ include "weightlease.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "weightlease.labels" -}}
{{ include "weightlease.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: weightlease
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Call with (dict "root" $ "image" .Values.images.operator). */}}
{{- define "weightlease.image" -}}
{{- $registry := .root.Values.global.imageRegistry -}}
{{- $repository := .image.repository -}}
{{- if $registry }}{{ $repository = printf "%s/%s" $registry $repository }}{{ end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* What every container of ours starts from; nothing is added to it but in the init containers. */}}
{{- define "weightlease.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods are put: call with a component's values. */}}
{{- define "weightlease.scheduling" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Bytes of a whole number with a unit, such as 64Gi. */}}
{{- define "weightlease.bytes" -}}
{{- $factors := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 -}}
{{- if not (regexMatch "^[0-9]{1,15}(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$" .) -}}
{{- fail (printf "%q is no whole number of bytes with Ki to Pi" .) -}}
{{- end -}}
{{- mul (regexFind "^[0-9]+" . | int64) (index $factors (regexFind "[A-Za-z]*$" .) | int64) -}}
{{- end -}}

{{/* Bytes that the memory class may take; 0 without the class or without a budget. */}}
{{- define "weightlease.memoryBudget" -}}
{{- ternary (include "weightlease.bytes" .Values.agent.capacity.memory.budget) "0" .Values.memory.enabled -}}
{{- end -}}

{{/* The agent's resources, with the budget of the memory class in its request: its pages are the agent's. */}}
{{- define "weightlease.agentResources" -}}
{{- $resources := deepCopy .Values.agent.resources -}}
{{- $budget := include "weightlease.memoryBudget" . | int64 -}}
{{- if gt $budget 0 -}}
{{- $requests := $resources.requests | default dict -}}
{{- $own := include "weightlease.bytes" (get $requests "memory" | default "0" | toString) | int64 -}}
{{- $resources = set $resources "requests" (set $requests "memory" (add $own $budget | toString)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* The name of a component's metrics in Prometheus; alerts and dashboard select by it. */}}
{{- define "weightlease.job" -}}
weightlease-{{ . }}
{{- end -}}
